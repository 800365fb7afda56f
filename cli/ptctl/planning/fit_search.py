"""`ptctl plan --fit`: the changed job as YAML, and what was changed in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ptapi.load import manifest
from ptapi.spec import PostTrainJob
from ptapi.text import kubectl_yaml
from ptctl.errors import InputError
from ptctl.ui.console import Console
from ptkube.resources import Manifest

GIB = 2**30


def show(console: Console, body: Manifest, job: PostTrainJob, found: Manifest, target: str | None) -> None:
    """The job with the change, to stdout or into a file; why and what, to stderr."""
    for line in words(job, found):
        console.say(line)
    if found["found"] is None:
        return
    text = kubectl_yaml.write(changed(body, found["found"]["settings"]))
    if target is None:
        console.data(text.rstrip("\n"))
        return
    try:
        Path(target).write_text(text)
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror}") from error
    console.say(f"written to {target}")


def changed(body: Manifest, settings: Manifest) -> Manifest:
    """The user's own document, with these paths of its spec set."""
    spec = _copy(body["spec"])
    for path, value in settings.items():
        *parents, last = path.split(".")
        inner = spec
        for key in parents:
            inner[key] = _copy(inner.get(key) or {})
            inner = inner[key]
        inner[last] = value
    return {**body, "spec": spec}


def words(job: PostTrainJob, found: Manifest) -> Iterator[str]:
    """What was tried, what was changed, and what comes of it."""
    name = job.metadata.name
    for refused in found["refused"]:
        yield f"refused by the compiler: {', '.join(_changes(job, refused['settings'])) or 'the job as it is'}"
    best = found["found"]
    if best is None:
        yield f"{name}: nothing that was tried fits ({found['tried']} layouts)"
        return
    memory = f"{_gib(best, 'peak')} of {_gib(best, 'available')} GiB per chip by the {found['confirmed_by']}"
    if not best["settings"]:
        yield f"{name}: fits as it is: {memory}"
        return
    yield f"{name}: does not fit as it is; with this it does ({found['tried']} layouts were tried):"
    yield from (f"  {change}" for change in _changes(job, best["settings"]))
    yield memory


def _changes(job: PostTrainJob, settings: Manifest) -> list[str]:
    """`training.microBatchSize: 16 -> 8`."""
    old = manifest(job)["spec"]
    said = []
    for path, value in settings.items():
        before: Any = old
        for key in path.split("."):
            before = before.get(key) if isinstance(before, dict) else None
        said.append(f"{path}: {_short(before)} -> {_short(value)}")
    return said


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_short(inner)}" for key, inner in value.items() if inner != "auto") + "}"
    return "unset" if value is None else str(value)


def _gib(candidate: Manifest, key: str) -> str:
    return f"{candidate[key] * candidate['devices_per_chip'] / GIB:.1f}"


def _copy(value: Any) -> Manifest:
    return dict(value) if isinstance(value, dict) else {}
