"""What a learning task is: data, the jobs that learn it in their order, and the bar that each must reach.

A task says nothing about how it is run (`trial`), kept (`book`) or shown (`page`). The idea: every trial is one
PostTrainJob for `python -m pttrainer run`, what a user would write, and everything about it is read from the run
directory.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Spec = dict[str, Any]
"""`spec` of a PostTrainJob, without accelerator, output and seed."""


@dataclass(frozen=True)
class Place:
    """Where a seed's files of a task are. root: of everything."""

    root: Path
    task: str
    seed: int

    @property
    def folder(self) -> Path:
        """Data and runs of this task and seed."""
        return self.root / self.task / f"seed-{self.seed}"

    def data(self, name: str) -> str:
        """URI of a data file."""
        return (self.folder / "data" / name).as_uri()

    def export(self, of: str) -> str:
        """URI of the model that a trial left: `task/trial`, of the same seed."""
        task, trial = of.split("/")
        return (Place(self.root, task, self.seed).folder / "runs" / trial / "export").as_uri()


@dataclass(frozen=True)
class Bar:
    """What every seed must show. metric: as `metrics.jsonl` names it; least: its value after training; gain: how far
    that is above the value before. below: of a control that must not get so far, since else it shows nothing. and_also:
    another metric; the value is the lower one of both."""

    metric: str
    least: float | None = None
    gain: float | None = None
    below: float | None = None
    and_also: str | None = None

    @property
    def metrics(self) -> list[str]:
        """The metrics whose lowest is the value."""
        return [self.metric] if self.and_also is None else [self.metric, self.and_also]

    def missed(self, before: float, after: float) -> list[str]:
        """What is wanted and was not reached, in words; empty where all was."""
        wanted = [
            (self.least is None or after >= self.least, f"at least {self.least}"),
            (self.gain is None or after - before >= self.gain, f"{self.gain} more than before"),
            (self.below is None or after < self.below, f"less than {self.below}, as a control"),
        ]
        return [words for is_met, words in wanted if not is_met]

    @property
    def words(self) -> str:
        """For a table, in percent."""
        parts = [
            None if self.least is None else f"≥ {self.least:.0%}",
            None if self.gain is None else f"{self.gain * 100:+.0f} points",
            None if self.below is None else f"control: < {self.below:.0%}",
        ]
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class Trial:
    """One job. needs: trials (`task/trial`) whose exports it reads. prepare: makes data that must wait for them."""

    name: str
    spec: Callable[[Place], Spec]
    bar: Bar
    needs: tuple[str, ...] = ()
    prepare: Callable[[Place], None] | None = None

    @property
    def needed(self) -> list[tuple[str, str]]:
        """`needs` as (task, trial)."""
        return [(task, trial) for task, _, trial in (need.partition("/") for need in self.needs)]


@dataclass(frozen=True)
class Task:
    """title and story: for people, Markdown. write_data: (folder, seed), the same files for the same seed."""

    name: str
    title: str
    story: str
    write_data: Callable[[Path, int], None]
    trials: tuple[Trial, ...]

    def trial(self, name: str) -> Trial:
        """The trial of this name."""
        return next(trial for trial in self.trials if trial.name == name)


def in_order(tasks: Mapping[str, Task], wanted: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """These (task, trial) and all that they need, each once and after what it needs."""
    ordered: dict[tuple[str, str], None] = {}
    for task, trial in wanted:
        ordered |= dict.fromkeys(in_order(tasks, tasks[task].trial(trial).needed))
        ordered[task, trial] = None
    return list(ordered)


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
