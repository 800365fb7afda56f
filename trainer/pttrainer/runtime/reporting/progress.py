"""What the run is doing: `progress.json`, a line per step, a progress bar on a terminal.

The operator reads `progress.json`. It is replaced atomically, at once when the stage changes and otherwise at most
every `MIN_INTERVAL_S`. Step lines go to stdout, everything else to stderr.
"""

import importlib.util
import math
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ptapi import run_directory
from ptapi.run_directory import BestRef, CheckpointRef, Progress, SlicesProgress, Stage
from ptapi.text.terminal import PROGRESS_LINE
from pttrainer.runtime.io.place import Place

MIN_INTERVAL_S = 1.0
ALIVE_S = 30.0
LOG_INTERVAL_S = 10.0
"""The log repeats the document at a change of stage, and otherwise at most this often."""
LINE_METRICS = (
    (run_directory.LOSS, "loss {:.4f}"),
    (run_directory.REWARD, "reward {:.3f}"),
    (run_directory.COMPLETION_LENGTH, "length {:.0f}"),
    (run_directory.KL, "kl {:.4f}"),
    (run_directory.ENTROPY, "entropy {:.3f}"),
    (run_directory.GRAD_NORM, "grad {:.3f}"),
    (run_directory.LEARNING_RATE, "lr {:.2e}"),
    (run_directory.TOKENS_PER_SECOND, "{:.0f} tok/s"),
)
"""Metrics that a step's line shows, in this order."""

_TIMED: dict[Stage, str] = {
    "loading": "loading",
    "compiling": "compiling",
    "restoring": "restoring",
    "training": "training",
    "evaluating": "evaluating",
    "saving": "saving",
    "exporting": "saving",
}
"""Stage to the field of `TimeSplit` that its seconds count for."""


class Beat(NamedTuple):
    """The last sign of life.

    since: its time (`time.monotonic`); typical_s: duration of a step of this attempt.
    """

    stage: Stage
    since: float
    step: int
    typical_s: float | None
    attempt: int


class Reporter:
    """Keeps the progress document up to date. A no-op on processes that are not the leader.

    in_log: repeat the document in the log. slices: those of this attempt, if a supervisor chose them.
    """

    def __init__(
        self, place: Place, job_uid: str, *, leader: bool, in_log: bool = False, slices: SlicesProgress | None = None
    ) -> None:
        self._place = place
        self._leader = leader
        self._in_log, self._logged = in_log, 0.0
        before = _read(place)
        self._document = Progress(job_uid=job_uid, started=_now())
        if before is not None and before.job_uid == job_uid:
            # Until this attempt knows better, the run stands where the one before left it.
            changes = {"attempt": before.attempt + 1, "stage": "loading", "eta_seconds": None}
            self._document = before.model_copy(update={**changes, "started": before.started or _now()})
            self._add_time(restarting=_seconds_since(before.updated))
        self._document = self._document.model_copy(update={"slices": slices})
        self._stage_since = self._alive_at = time.monotonic()
        self._written, self._writing = 0.0, threading.Lock()
        self._durations: deque[float] = deque(maxlen=50)
        self._bar: Any = None

    @property
    def step(self) -> int:
        """Return the last reported step."""
        return self._document.step

    def beat(self) -> Beat:
        """Return the last sign of life; the watchdog of every process reads it, leader or not."""
        typical = statistics.median(self._durations) if self._durations else None
        document = self._document
        return Beat(document.stage, self._alive_at, document.step, typical, document.attempt)

    def goodput(self) -> float:
        """Return the share of time since the first attempt began that went into training steps."""
        now = datetime.now(UTC)
        training = self._document.time.training
        if self._document.stage == "training":
            training += time.monotonic() - self._stage_since
        passed = (now - datetime.fromisoformat(self._document.started)).total_seconds()
        share = min(1.0, training / passed) if passed > 0 else 0.0
        self._update(goodput=share)
        return share

    def note(self, text: str) -> None:
        """Show a line on stderr; also a sign of life."""
        self._alive_at = time.monotonic()
        if self._leader:
            self._print(text, file=sys.stderr)

    def alive(self) -> None:
        """Record a sign of life of a wait that has a limit of its own; callable from any thread."""
        self._alive_at = time.monotonic()
        self._write(every_s=ALIVE_S)

    def stage(self, stage: Stage) -> None:
        """Enter a stage and book the seconds of the previous one."""
        now = time.monotonic()
        field, slices = _TIMED.get(self._document.stage), self._document.slices
        if field is not None:
            self._add_time(**{field: now - self._stage_since})
        if field == "training" and slices is not None and len(slices.present) < slices.total:
            self._add_time(fewer_slices=now - self._stage_since)
        self._stage_since = self._alive_at = now
        self._update(stage=stage)
        self._write(every_s=0.0)

    def start(self, step: int, total: int) -> None:
        """Start training after `step` finished steps."""
        checkpoint = self._document.checkpoint if step else None
        self._add_time(repeated=max(0, self._document.step - step) * (self._document.seconds_per_step or 0.0))
        self._update(step=step, total_steps=total, checkpoint=checkpoint)
        # `rich` comes with ptctl; a trainer's image, which no terminal is attached to, has none.
        if self._leader and sys.stderr.isatty() and importlib.util.find_spec("rich"):
            self._bar = _bar(step, total)

    def finished_step(self, step: int, metrics: Mapping[str, float], seconds: float) -> None:
        """Report a finished step: its line, the bar, the document."""
        self._alive_at = time.monotonic()
        self._durations.append(seconds)
        typical = statistics.median(self._durations)
        self._update(
            step=step,
            metrics=_finite(metrics),
            seconds_per_step=typical,
            eta_seconds=typical * (self._document.total_steps - step),
        )
        self._write(every_s=0.0 if step == self._document.total_steps else MIN_INTERVAL_S)
        if self._leader:
            shown = "  ".join(_shown(name, form, metrics[name]) for name, form in LINE_METRICS if name in metrics)
            self._print(f"step {step}/{self._document.total_steps}  {shown}  {seconds:.2f} s", file=sys.stdout)
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], completed=step)

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report a finished evaluation."""
        if metrics:
            self._update(metrics={**self._document.metrics, **_finite(metrics)})
            self.note(f"eval at step {step}  " + "  ".join(f"{name} {value:.4f}" for name, value in metrics.items()))

    def checkpoint(self, step: int, uri: str, best: BestRef | None = None) -> None:
        """Report a committed checkpoint; `best`: the best one of the run."""
        self._update(best=best)
        if self._document.checkpoint is None or self._document.checkpoint.step != step:
            self._update(checkpoint=CheckpointRef(step=step, uri=uri, time=_now()))

    def close(self) -> None:
        """Remove the progress bar."""
        if self._bar is not None:
            self._bar.stop()

    def _add_time(self, **seconds: float) -> None:
        split = self._document.time
        self._update(time=split.model_copy(update={name: getattr(split, name) + s for name, s in seconds.items()}))

    def _update(self, **changes: Any) -> None:
        self._document = self._document.model_copy(update=changes)

    def _write(self, *, every_s: float) -> None:
        with self._writing:
            now = time.monotonic()
            if self._leader and now - self._written >= every_s:
                self._written = now
                document = self._document.model_copy(update={"updated": _now()})
                self._place.write(run_directory.PROGRESS, document.model_dump_json(by_alias=True, indent=2).encode())
                if self._in_log and (every_s == 0.0 or now - self._logged >= LOG_INTERVAL_S):
                    self._logged = now
                    content = document.model_dump_json(by_alias=True, exclude_defaults=True)
                    self._print(f"{PROGRESS_LINE}{content}", file=sys.stdout)

    def _print(self, text: str, file: Any) -> None:
        if self._bar is not None and file.isatty():
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=file, flush=True)


def _shown(name: str, form: str, value: float) -> str:
    """Format a metric, or return "" for a missing reward (NaN); a NaN loss must stay visible."""
    return "no reward" if name == run_directory.REWARD and math.isnan(value) else form.format(value)


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Drop values that JSON cannot express."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _read(place: Place) -> Progress | None:
    content = place.read(run_directory.PROGRESS)
    try:
        return None if content is None else Progress.model_validate_json(content)
    except ValueError:
        return None  # written by hand or by another version: counting starts again


def _bar(step: int, total: int) -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    bar.add_task("training", total=total, completed=step)
    bar.start()
    return bar


def _seconds_since(time_: str) -> float:
    """Return the seconds since a time in a document, by the wall clock; 0 if it lies ahead or cannot be read."""
    try:
        return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(time_)).total_seconds())
    except ValueError:
        return 0.0


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
