"""Who asks a registry: Docker's config.json and its helpers, else for Google's registries Google's credentials."""

from __future__ import annotations

import base64
import binascii
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from ptctl.cluster.cloud.settings import CloudSettings
from ptctl.errors import CliError

Login = tuple[str, str]
"""User and password."""
_HUB_KEY = "https://index.docker.io/v1/"
_GOOGLE = (".pkg.dev", "gcr.io")
_HELPER_S = 30.0


def login(registry: str) -> Login | None:
    """Return user and password for a registry, None to ask without."""
    path = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    config = _read(path)
    keys = [_HUB_KEY] if registry == "docker.io" else [registry, f"https://{registry}"]
    helpers: dict[str, str] = config.get("credHelpers") or {}
    helper = next((helpers[key] for key in keys if key in helpers), None) or config.get("credsStore")
    stored = next((config["auths"][key] for key in keys if key in (config.get("auths") or {})), None)
    if helper and (shutil.which(f"docker-credential-{helper}") or registry in helpers):
        answer = _ask_helper(helper, keys[0])
        if answer is not None:
            return answer
    if stored and stored.get("auth"):
        return _decoded(path, keys[0], stored["auth"])
    if registry.endswith(_GOOGLE):
        return "oauth2accesstoken", CloudSettings.from_env().token()
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CliError(f"{path}: cannot be read: {error}") from error
    return config if isinstance(config, dict) else {}


def _decoded(path: Path, key: str, text: str) -> Login:
    try:
        user, _, password = base64.b64decode(text, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise CliError(f"{path}: auths.{key}.auth is not user:password in base64", "docker login writes it") from error
    return user, password


def _ask_helper(helper: str, key: str) -> Login | None:
    """Return what a credential helper has for a registry; None if it has nothing."""
    command = f"docker-credential-{helper}"
    try:
        done = subprocess.run([command, "get"], input=key, capture_output=True, text=True, timeout=_HELPER_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CliError(f"{command}, which config.json names for {key}, does not answer: {error}") from error
    if done.returncode:
        if "not found" in done.stdout + done.stderr:
            return None
        raise CliError(f"{command} has no credentials for {key}: {(done.stderr or done.stdout).strip()}")
    try:
        answer = json.loads(done.stdout)
        return str(answer["Username"]), str(answer["Secret"])
    except (ValueError, KeyError, TypeError) as error:
        raise CliError(f"{command} prints no credentials for {key}") from error
