"""Manifests of JobSet and Kueue, from a file or an address that the user names. Nothing is fetched unasked."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import yaml

from ptctl.errors import InputError
from ptkube.resources import Manifest

_MAX_BYTES = 32 * 2**20
_TIMEOUT_S = 60.0


def manifests(flag: str, source: str) -> list[Manifest]:
    """Return the objects of a YAML file or https address, definitions first. Raises InputError."""
    text = _fetch(flag, source) if "://" in source else _read(flag, source)
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        bodies = [body for body in yaml.load_all(text, loader) if body]
    except yaml.YAMLError as error:
        raise InputError(f"{flag}: {source} is not YAML: {error}") from error
    for body in bodies:
        if not isinstance(body, dict) or not body.get("kind") or not (body.get("metadata") or {}).get("name"):
            raise InputError(f"{flag}: {source} holds something that is no Kubernetes object with a name")
    if not bodies:
        raise InputError(f"{flag}: {source} is empty; accepted: the manifests of a release")
    first = ("CustomResourceDefinition", "Namespace")
    return sorted(bodies, key=lambda body: body["kind"] not in first)


def _read(flag: str, source: str) -> bytes:
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise InputError(f"{flag}: {source}: {error.strerror}; accepted: a file, or an https address") from error


def _fetch(flag: str, source: str) -> bytes:
    if not source.startswith("https://"):
        raise InputError(f"{flag}: {source}; accepted: a file, or an https address")
    try:
        with urllib.request.urlopen(source, timeout=_TIMEOUT_S) as answer:
            text: bytes = answer.read(_MAX_BYTES + 1)
    except (urllib.error.URLError, OSError) as error:
        raise InputError(f"{flag}: {source} cannot be fetched: {error}", "download it, and pass the file") from error
    if len(text) > _MAX_BYTES:
        raise InputError(f"{flag}: {source} is larger than {_MAX_BYTES // 2**20} MiB")
    return text
