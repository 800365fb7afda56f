"""The progress of the run in a directory, derived from its files, without jax."""

import json
from collections.abc import Iterator
from typing import NamedTuple

from ptapi import run_directory
from pttrainer.runtime.io.directory import Directory
from pttrainer.runtime.io.place import Place

COMMITTED = "commit_success.txt"
"""The file that Orbax writes last into a checkpoint in a bucket; on a disk it renames."""


class RunProgress(NamedTuple):
    """The progress of a run. checkpoint: the step of its newest checkpoint, if any."""

    step: int
    checkpoint: int | None


def run_progress(place: Place) -> RunProgress | None:
    """Return the progress of the run in this directory; None if it has neither a checkpoint nor metrics."""
    saved = {int(step) for step in _checkpoints(place)}
    if saved:
        return RunProgress(max(saved), max(saved))
    steps = [_step(line) for line in (place.read(run_directory.METRICS) or b"").splitlines()]
    return RunProgress(max(steps), None) if any(steps) else None


def _checkpoints(place: Place) -> Iterator[str]:
    """Yield the steps of committed checkpoints."""
    for name in place.names(run_directory.CHECKPOINTS):
        _, step, *rest = name.split("/")
        if step.isdigit() and (isinstance(place, Directory) or rest == [COMMITTED]):
            yield step


def _step(line: bytes) -> int:
    """Return the step of a metrics line; 0 if the line was cut off."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0
