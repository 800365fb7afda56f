"""Names of jobs for the shell's completion, kept between two commands: asking the cluster takes too long for a key.

One small file for a kubeconfig, context and namespace. `list`, `create` and `delete` write what they learn. A list that
is older than `_FRESH_S` is still offered, while a process of its own asks for the next one. A file that cannot be read
or written is no error: completion then asks the cluster.
"""

import json
import os
import time
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from ptctl.ui.app import Target
from ptctl.ui.user_directory import user_directory

_FRESH_S = 20.0
_KEPT_S = 86400.0
"""A list of yesterday's jobs misleads."""

Fetch = Callable[[], list[str]]


def complete(target: Target, incomplete: str, fetch: Fetch) -> list[str]:
    """Return the names that begin with `incomplete`. The cluster is asked now only if none is known."""
    names, age_s = _read(target)
    matches = [name for name in names if name.startswith(incomplete)]
    if age_s < _FRESH_S:
        return matches
    if matches:
        _refresh(target, fetch)
        return matches
    remember(target, names := fetch())
    return [name for name in names if name.startswith(incomplete)]


def remember(target: Target, names: Iterable[str]) -> None:
    """Keep the names of all jobs of a namespace."""
    _write(target, names, age_s=0.0)


def add(target: Target, name: str) -> None:
    """Add the name of a job that was created."""
    names, age_s = _read(target)
    _write(target, {*names, name}, age_s)


def discard(target: Target, removed: Iterable[str]) -> None:
    """Take out the names of jobs that were deleted."""
    names, age_s = _read(target)
    if names:
        _write(target, set(names) - set(removed), age_s)


def _read(target: Target) -> tuple[list[str], float]:
    """Return the names and their age in seconds."""
    try:
        path = _path(target)
        age_s = max(0.0, time.time() - path.stat().st_mtime)
        names = json.loads(path.read_text(encoding="utf-8")) if age_s < _KEPT_S else []
        return [str(name) for name in names], age_s
    except (OSError, ValueError, TypeError):
        return [], _KEPT_S


def _write(target: Target, names: Iterable[str], age_s: float) -> None:
    with suppress(OSError):
        path = _path(target)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(sorted(names)), encoding="utf-8")
        at = time.time() - age_s
        os.utime(part, (at, at))
        part.replace(path)
        for old in path.parent.iterdir():
            if time.time() - old.stat().st_mtime > _KEPT_S:
                old.unlink()


def _path(target: Target) -> Path:
    """Return the file of a target: another one whenever a kubeconfig changes, so that no context is mistaken."""
    listed = [target.kubeconfig] if target.kubeconfig else os.environ.get("KUBECONFIG", "").split(os.pathsep)
    files = [Path(each).expanduser() for each in listed if each] or [Path.home() / ".kube" / "config"]
    states = [(str(file.absolute()), file.stat().st_mtime_ns) for file in files if file.exists()]
    key = json.dumps([states, target.context, target.namespace])
    return user_directory() / "job-names" / f"{zlib.crc32(key.encode()):08x}-{len(key)}.json"


def _refresh(target: Target, fetch: Fetch) -> None:
    """Ask the cluster in a process of its own, which holds nothing of the shell's."""
    with suppress(OSError):
        os.utime(_path(target))  # the next key does not ask again
        if os.fork():
            return
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
            remember(target, fetch())
        finally:
            os._exit(0)
