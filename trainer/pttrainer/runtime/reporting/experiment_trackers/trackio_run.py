"""Trackio: a dashboard in a Hugging Face Space, or files in the run directory for `trackio show`."""

import os
from collections.abc import Mapping
from typing import Any

from ptapi import run_directory
from ptapi.spec.tracking import Trackio
from pttrainer.runtime.reporting.experiment_trackers.tracked_run import TrackedRun


def start(spec: Trackio, run: TrackedRun) -> "TrackioRun":
    """Start or continue the run."""
    if spec.space_id is None:
        os.environ.setdefault("TRACKIO_DIR", str(run.folder / run_directory.TRACKIO))  # read once, when it is imported
    import trackio

    return TrackioRun(
        trackio.init(
            project=spec.project,
            name=run.id_of("trackio")[0],
            space_id=spec.space_id,
            config=run.settings(),
            resume="allow",
            embed=False,
        )
    )


class TrackioRun:
    """A run of Trackio."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        """Report a step; Trackio keeps the time by itself."""
        self._run.log(dict(values), step=step)

    def finish(self, *, is_failed: bool) -> None:
        """Send what is left; Trackio knows no failed runs."""
        self._run.finish()
