"""Metrics of a run: `metrics.jsonl` (one object per step), TensorBoard, and experiment trackers.

A resumed run repeats the steps after its checkpoint; their old lines are dropped first, so no step appears twice. A
line that a kill cut in half is dropped with them.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ptapi import run_directory
from pttrainer.runtime.io.directory import Directory
from pttrainer.runtime.io.place import Place
from pttrainer.runtime.reporting.experiment_trackers.background import Background


class MetricsLog:
    """Writes the metrics of one attempt, which continues after `step` finished steps."""

    def __init__(self, place: Place, step: int, *, tensorboard: bool) -> None:
        self._place = place
        self._resumed = step
        self._tensorboard = tensorboard and isinstance(place, Directory)
        self._board: Any = None
        self.trackers: Sequence[Background] = ()
        lines = _lines(place.read(run_directory.METRICS) or b"") if step else []
        self.last_step = max((of for of, _ in lines), default=0)
        """The last step that an earlier attempt wrote; it may lie after `step`."""
        place.write(run_directory.METRICS, b"".join(line for of, line in lines if of <= step))

    def write(self, step: int, metrics: Mapping[str, float], time_s: float) -> None:
        """Write one step; `time_s` is seconds since the epoch."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        # JSON has no word for the others, and a reader that meets one should see a gap, not stop.
        line = {"step": step, "time": round(time_s, 3), **{name: finite.get(name) for name in metrics}}
        self._place.append(run_directory.METRICS, (json.dumps(line) + "\n").encode())
        if self._tensorboard:
            for name, value in finite.items():
                self._writer().add_scalar(name, value, step, walltime=time_s)
        for tracker in self.trackers:
            tracker.log(step, finite, time_s)

    def write_text(self, step: int, tag: str, text: str) -> None:
        """Write Markdown to TensorBoard's text tab."""
        if self._tensorboard:
            self._writer().add_text(tag, text, step)

    def close(self, *, is_failed: bool) -> None:
        """Flush what is still in memory, and end the tracked runs."""
        for tracker in self.trackers:
            tracker.close(is_failed=is_failed)
        if self._board is not None:
            self._board.close()

    def _writer(self) -> Any:
        if self._board is None:
            # Imported here: it takes half a second, and the first step has been computed by now.
            from tensorboardX import SummaryWriter

            assert isinstance(self._place, Directory)
            purge = self._resumed + 1 if self._resumed else None
            self._board = SummaryWriter(
                str(self._place.path / run_directory.TENSORBOARD), flush_secs=5, purge_step=purge
            )
        return self._board


def _lines(content: bytes) -> list[tuple[int, bytes]]:
    """Return the steps and lines of a file, without those that a kill cut in half."""
    lines = []
    for line in content.splitlines():
        try:
            lines.append((int(json.loads(line)["step"]), line + b"\n"))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return lines
