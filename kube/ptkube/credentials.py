"""The Authorization header: static tokens, token files that rotate, exec plugins whose tokens expire.

Client certificates are the transport's affair, except those an exec plugin hands out, which pass through here.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from ptkube.errors import ConfigError
from ptkube.kubeconfig import Access

_TOKEN_FILE_REFRESH_S = 60.0  # kubelet rotates projected tokens; client-go re-reads them each minute too
_EXPIRY_MARGIN_S = 30.0
_EXEC_TIMEOUT_S = 120.0  # a browser login may be behind it


class Credentials:
    """Thread-safe source of request headers for one `Access`."""

    def __init__(self, access: Access, clock: Callable[[], float] = time.time) -> None:
        self._access = access
        self._clock = clock
        self._lock = threading.Lock()
        self._token: str | None = access.token
        self._expires = float("inf")
        self.cert_pem = access.cert_pem
        self.key_pem = access.key_pem
        if access.exec_plugin or (access.token_file and not access.token):
            self._expires = 0.0

    @property
    def renewable(self) -> bool:
        """Return True if credentials can be fetched anew."""
        return self._access.exec_plugin is not None or self._access.token_file is not None

    def forget(self) -> None:
        """After a 401: fetch anew on the next request."""
        if self.renewable:
            with self._lock:
                self._expires = 0.0

    def headers(self) -> dict[str, str]:
        """Return the headers that authenticate a request."""
        headers = {}
        token = self._current()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        elif self._access.basic:
            pair = base64.b64encode(":".join(self._access.basic).encode()).decode()
            headers["Authorization"] = f"Basic {pair}"
        if self._access.impersonate:
            headers["Impersonate-User"] = self._access.impersonate
        return headers

    def _current(self) -> str | None:
        with self._lock:
            if self._clock() >= self._expires:
                if self._access.exec_plugin:
                    self._run_plugin(dict(self._access.exec_plugin))
                elif self._access.token_file:
                    self._read_file()
            return self._token

    def _read_file(self) -> None:
        assert self._access.token_file is not None
        try:
            self._token = self._access.token_file.read_text().strip()
        except OSError as error:
            raise ConfigError(f"cannot read token file {self._access.token_file}: {error.strerror}") from error
        self._expires = self._clock() + _TOKEN_FILE_REFRESH_S

    def _run_plugin(self, plugin: dict[str, Any]) -> None:
        command = str(plugin.get("command") or "")
        status = exec_credential(plugin, self._access)
        self._token = status.get("token")
        if status.get("clientCertificateData"):
            self.cert_pem, self.key_pem = status["clientCertificateData"], status.get("clientKeyData")
        if not self._token and not self.cert_pem:
            raise ConfigError(f"credential plugin '{command}' returned neither a token nor a certificate")
        expiry = status.get("expirationTimestamp")
        self._expires = datetime.fromisoformat(expiry).timestamp() - _EXPIRY_MARGIN_S if expiry else float("inf")


def exec_credential(plugin: dict[str, Any], access: Access) -> dict[str, Any]:
    """Run a client-go credential plugin and return the `status` of its ExecCredential."""
    command = str(plugin.get("command") or "")
    interactive = sys.stdin is not None and sys.stdin.isatty() and plugin.get("interactiveMode") != "Never"
    env = {**os.environ, "KUBERNETES_EXEC_INFO": json.dumps(_exec_info(plugin, access, interactive=interactive))}
    env.update({str(e["name"]): str(e.get("value") or "") for e in plugin.get("env") or []})
    try:
        done = subprocess.run(
            [command, *map(str, plugin.get("args") or [])],
            env=env,
            capture_output=True,
            stdin=None if interactive else subprocess.DEVNULL,
            timeout=_EXEC_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        hint = plugin.get("installHint") or f"install '{command}' and put it on PATH"
        raise ConfigError(f"credential plugin '{command}' is not installed\nhint: {hint}") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"credential plugin '{command}' gave no answer in {_EXEC_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()[-500:]
        raise ConfigError(f"credential plugin '{command}' failed with exit code {done.returncode}: {said}")
    try:
        status = json.loads(done.stdout)["status"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"credential plugin '{command}' did not print an ExecCredential with a status") from error
    return dict(status)


def _exec_info(plugin: dict[str, Any], access: Access, *, interactive: bool) -> dict[str, Any]:
    """Return the ExecCredential for a plugin; it describes the cluster only if the plugin asks for that."""
    spec: dict[str, Any] = {"interactive": interactive}
    if plugin.get("provideClusterInfo"):
        authority = base64.b64encode(access.ca_pem.encode()).decode() if access.ca_pem else None
        optional = {"tls-server-name": access.tls_server_name, "certificate-authority-data": authority}
        spec["cluster"] = {
            "server": access.server,
            "insecure-skip-tls-verify": not access.verify,
            **{key: value for key, value in optional.items() if value},
        }
    return {"apiVersion": plugin.get("apiVersion"), "kind": "ExecCredential", "spec": spec}
