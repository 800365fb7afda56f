"""`ptctl plan fit`: print the changed job as YAML, and explain the changes."""

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


def show(console: Console, body: Manifest, job: PostTrainJob, result: Manifest, target: str | None) -> None:
    """Print the changed job to stdout or write it into a file; explain the changes on stderr."""
    for line in explain(job, result):
        console.say(line)
    if result["change"] is None:
        return
    text = kubectl_yaml.write(with_settings(body, result["change"]["settings"]))
    if target is None:
        console.data(text.rstrip("\n"))
        return
    try:
        Path(target).write_text(text)
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror}") from error
    console.say(f"written to {target}")


def with_settings(body: Manifest, settings: Manifest) -> Manifest:
    """Return the user's own document with these paths of its spec set."""
    spec = _copy(body["spec"])
    for path, value in settings.items():
        *parents, last = path.split(".")
        inner = spec
        for key in parents:
            inner[key] = _copy(inner.get(key) or {})
            inner = inner[key]
        inner[last] = value
    return {**body, "spec": spec}


def explain(job: PostTrainJob, result: Manifest) -> Iterator[str]:
    """Yield lines that say what was tried, what was changed and how much memory it needs."""
    name = job.metadata.name
    for refused in result["refused"]:
        yield f"refused by the compiler: {', '.join(_changes(job, refused['settings'])) or 'the job as it is'}"
    best = result["change"]
    if best is None:
        yield f"{name}: none of the {result['tried']} layouts tried fits"
        return
    memory = f"{_gib(best, 'peak')} of {_gib(best, 'available')} GiB per chip by the {result['confirmed_by']}"
    if best["step_seconds"] is not None:
        memory += f"; about {best['step_seconds']:.3g} s a step by the compiler's estimates"
    if not best["settings"]:
        yield f"{name}: fits as it is: {memory}"
        yield from _notes(result)
        return
    yield f"{name}: does not fit as it is; it fits with these changes ({result['tried']} layouts tried):"
    yield from (f"  {change}" for change in _changes(job, best["settings"]))
    yield memory
    yield from _notes(result)


def _notes(result: Manifest) -> Iterator[str]:
    yield from (f"note: {note}" for note in result["notes"])


def _changes(job: PostTrainJob, settings: Manifest) -> list[str]:
    """Return lines such as `training.microBatchSize: 16 -> 8`."""
    spec = manifest(job)["spec"]
    changes = []
    for path, value in settings.items():
        before: Any = spec
        for key in path.split("."):
            before = before.get(key) if isinstance(before, dict) else None
        changes.append(f"{path}: {_short(before)} -> {_short(value)}")
    return changes


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_short(inner)}" for key, inner in value.items() if inner != "auto") + "}"
    return "unset" if value is None else str(value)


def _gib(candidate: Manifest, key: str) -> str:
    return f"{candidate[key] * candidate['devices_per_chip'] / GIB:.1f}"


def _copy(value: Any) -> Manifest:
    return dict(value) if isinstance(value, dict) else {}
