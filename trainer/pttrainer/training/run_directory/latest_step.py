"""How far the run in a directory has come, told from what it left there, without jax."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from ptapi import run_directory
from pttrainer.runtime.io.storage import Directory, Place

COMMITTED = "commit_success.txt"
"""What Orbax writes last into a checkpoint of a bucket; on a disk it renames."""


class Reached(NamedTuple):
    """How far a run has come. checkpoint: the step of its newest one, if it has any."""

    step: int
    checkpoint: int | None


def reached(place: Place) -> Reached | None:
    """How far the run in this directory has come; None where it has no step, neither saved nor in its metrics."""
    saved = {int(step) for step in _checkpoints(place)}
    if saved:
        return Reached(max(saved), max(saved))
    steps = [_step(line) for line in (place.read(run_directory.METRICS) or b"").splitlines()]
    return Reached(max(steps), None) if any(steps) else None


def _checkpoints(place: Place) -> Iterator[str]:
    """The steps of checkpoints that are committed."""
    for name in place.names(run_directory.CHECKPOINTS):
        _, step, *rest = name.split("/")
        if step.isdigit() and (isinstance(place, Directory) or rest == [COMMITTED]):
            yield step


def _step(line: bytes) -> int:
    """Of a line of the metrics; 0 where it was cut off."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return 0
