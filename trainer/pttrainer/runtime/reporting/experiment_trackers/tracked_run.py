"""A run as trackers know it: its name, its settings, and the ids under which they continue it."""

import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ptapi import run_directory
from ptapi.spec import PostTrainJob
from pttrainer.runtime.io.place import Place

_WRITES = threading.Lock()
"""Trackers start in threads of their own, and their ids are in one file."""


class Tracker(Protocol):
    """What a tracker does with a run that it has started."""

    def log(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        """Report the finite metrics of a step; `time_s` is seconds since the epoch."""

    def finish(self, *, is_failed: bool) -> None:
        """Send what is left, and end the run."""


@dataclass(frozen=True)
class TrackedRun:
    """A job's run. folder: a local run directory; of a bucket's, one that trackers do not write to."""

    job: PostTrainJob
    place: Place
    folder: Path

    @property
    def name(self) -> str:
        """Return the job's name."""
        return self.job.metadata.name

    def settings(self) -> dict[str, Any]:
        """Return the spec as a user would write it, without variables, which may hold secrets."""
        return self.job.spec.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"env", "pod"})

    def flat_settings(self) -> dict[str, str]:
        """Return the settings by dotted path."""
        return dict(_leaves(self.settings(), ""))

    def id_of(self, tracker: str, create: Callable[[], str] | None = None) -> tuple[str, bool]:
        """Return the run's id with a tracker, and whether it is new.

        create: makes the id of a new run; unset: the job's name and eight random hexadecimal digits.
        """
        known = self._ids().get(tracker)
        if known is not None:
            return known, False
        new = create() if create else f"{self.name}-{secrets.token_hex(4)}"
        with _WRITES:
            self.place.write(run_directory.TRACKING, json.dumps({**self._ids(), tracker: new}).encode())
        return new, True

    def _ids(self) -> dict[str, str]:
        ids: dict[str, str] = json.loads(self.place.read(run_directory.TRACKING) or b"{}")
        return ids


Start = Callable[[TrackedRun], Tracker]


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else name)
    else:
        yield path, value if isinstance(value, str) else json.dumps(value)
