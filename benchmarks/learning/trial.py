"""Performs one trial: the data, the trials that it needs, then `python -m pttrainer run` on its job.

A trial that ended leaves `outcome.json` beside its run directory and is not run again, so that a table that was
interrupted goes on where it stopped; one that was cut off within begins again, as it has no checkpoint before its end.
Seconds are of the process from start to end, compilation included; CPU seconds are its user and system time, those of
its children too.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from task import Place, Task, Trial


@dataclass(frozen=True)
class Outcome:
    """What a trial showed. curve: [step, value] of the bar's metric; reward: of the training samples, where it has
    any; clipped: mean clip fraction of all steps. load: of the machine, before and after, 1-minute average."""

    task: str
    trial: str
    seed: int
    steps: int
    curve: list[list[float]]
    reward: list[list[float]]
    clipped: float | None
    seconds: float
    cpu_seconds: float
    load: list[float]
    machine: str

    @property
    def before(self) -> float:
        """The metric before the first step."""
        return self.curve[0][1]

    @property
    def after(self) -> float:
        """The metric after the last step."""
        return self.curve[-1][1]


class TrialFailed(Exception):
    """A job did not end well; its log says why."""


def perform(tasks: dict[str, Task], name: str, trial: Trial, seed: int, root: Path) -> list[Outcome]:
    """The trial and all that it needs, each once; raises TrialFailed."""
    outcomes: list[Outcome] = []
    for need in trial.needs:
        needed, of = need.split("/")
        outcomes += perform(tasks, needed, tasks[needed].trial(of), seed, root)
    place = Place(root, name, seed)
    kept = place.folder / f"{trial.name}.outcome.json"
    if not kept.exists():
        _make_data(tasks[name], trial, place)
        kept.write_text(json.dumps(asdict(_run(trial, place))))
    return [*outcomes, Outcome(**json.loads(kept.read_text()))]


def manifest(trial: Trial, place: Place) -> dict[str, Any]:
    """The PostTrainJob."""
    spec = trial.spec(place)
    spec["training"] = {**spec["training"], "seed": place.seed}
    return {
        "apiVersion": "posttrain.dev/v1alpha1",
        "kind": "PostTrainJob",
        "metadata": {"name": trial.name},
        "spec": {
            # Trials are short and their checkpoints are read by nobody: one, at the end.
            "checkpoint": {"everySteps": 100_000, "keep": 1},
            **spec,
            "accelerator": {"type": "cpu-1"},
            "output": {"uri": (place.folder / "runs").as_uri()},
        },
    }


def read(trial: Trial, metrics: Path) -> dict[str, Any]:
    """The parts of an outcome that `metrics.jsonl` holds."""
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    clipped = [row["clip_fraction"] for row in rows if row.get("clip_fraction") is not None]
    return {
        "steps": rows[-1]["step"],
        "curve": _series(rows, trial.bar.metric),
        "reward": _series(rows, "reward"),
        "clipped": round(sum(clipped) / len(clipped), 4) if clipped else None,
    }


def machine() -> str:
    """This machine in words."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    return f"{os.cpu_count()} cores, {found[1].strip() if found else platform.processor() or platform.machine()}"


def _make_data(task: Task, trial: Trial, place: Place) -> None:
    data = place.folder / "data"
    if not data.exists():
        # Under another name until it is whole.
        unfinished = place.folder / "data-unfinished"
        task.write_data(unfinished, place.seed)
        unfinished.rename(data)
    if trial.prepare is not None:
        trial.prepare(place)


def _run(trial: Trial, place: Place) -> Outcome:
    job, log = place.folder / f"{trial.name}.json", place.folder / f"{trial.name}.log"
    job.write_text(json.dumps(manifest(trial, place), indent=1))  # JSON is YAML
    load, began = os.getloadavg()[0], time.monotonic()
    with log.open("a") as output:
        command = [sys.executable, "-m", "pttrainer", "run", str(job)]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
    seconds = time.monotonic() - began
    code = process.returncode = os.waitstatus_to_exitcode(status)
    if code:
        last = "".join(log.read_text().splitlines(keepends=True)[-15:])
        raise TrialFailed(f"{place.task}/{trial.name}, seed {place.seed}: ended with {code}:\n{last}hint: see {log}")
    return Outcome(
        task=place.task,
        trial=trial.name,
        seed=place.seed,
        **read(trial, place.folder / "runs" / trial.name / "metrics.jsonl"),
        seconds=round(seconds, 1),
        cpu_seconds=round(used.ru_utime + used.ru_stime, 1),
        load=[round(load, 1), round(os.getloadavg()[0], 1)],
        machine=machine(),
    )


def _series(rows: list[dict[str, Any]], metric: str) -> list[list[float]]:
    return [[row["step"], round(row[metric], 4)] for row in rows if row.get(metric) is not None]
