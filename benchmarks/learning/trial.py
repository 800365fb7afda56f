"""Performs one trial whose needs were performed: the data, then `python -m pttrainer run` on its job.

A trial that ended leaves `outcome.json` beside its run directory and is not run again while its job stays as it was and
what it needs was not run again: a table that was interrupted goes on where it stopped. One that was cut off within
begins again from nothing, so that its seconds are those of a whole run: of the process from start to end, compilation
included; CPU seconds are its user and system time, those of its children too.
"""

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
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


Watch = Callable[[Trial, Place], None]
"""Is called every `TICK_S` while a trial runs."""
TICK_S = 0.5
ENDING_S = 5.0
"""That a trainer has to end in, once it was told to."""


def unwatched(trial: Trial, place: Place) -> None:
    """Nobody looks."""


def perform(task: Task, trial: Trial, seed: int, root: Path, watch: Watch = unwatched) -> Outcome:
    """The trial, or what it showed before; raises TrialFailed."""
    place = Place(root, task.name, seed)
    kept, job = place.folder / f"{trial.name}.outcome.json", _job(place, trial)
    if not is_done(trial, place):
        kept.unlink(missing_ok=True)
        shutil.rmtree(place.folder / "runs" / trial.name, ignore_errors=True)
        _make_data(task, trial, place)
        job.write_text(_text(trial, place))
        kept.write_text(json.dumps(asdict(_run(trial, place, watch))))
    return Outcome(**json.loads(kept.read_text()))


def is_done(trial: Trial, place: Place) -> bool:
    """Whether it ended, with the job that it has now and after the last run of all that it needs."""
    kept, job = place.folder / f"{trial.name}.outcome.json", _job(place, trial)
    if not kept.exists() or not job.exists() or job.read_text() != _text(trial, place):
        return False
    needed = [Place(place.root, task, place.seed).folder / f"{name}.outcome.json" for task, name in trial.needed]
    return all(need.exists() and need.stat().st_mtime_ns <= kept.stat().st_mtime_ns for need in needed)


def progress(trial: Trial, place: Place) -> tuple[int, int] | None:
    """Step and steps of a trial that runs; None before its first."""
    try:
        document = json.loads((place.folder / "runs" / trial.name / "progress.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return document["step"], document["totalSteps"]


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
        "curve": _lowest([_series(rows, metric) for metric in trial.bar.metrics]),
        "reward": _series(rows, "reward"),
        "clipped": round(sum(clipped) / len(clipped), 4) if clipped else None,
    }


def machine() -> str:
    """This machine in words."""
    info = Path("/proc/cpuinfo")
    match = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    return f"{os.cpu_count()} cores, {match[1].strip() if match else platform.processor() or platform.machine()}"


def _job(place: Place, trial: Trial) -> Path:
    return place.folder / f"{trial.name}.json"


def _text(trial: Trial, place: Place) -> str:
    return json.dumps(manifest(trial, place), indent=1)  # JSON is YAML


def _make_data(task: Task, trial: Trial, place: Place) -> None:
    data = place.folder / "data"
    try:
        if not data.exists():
            # Under another name until it is whole.
            unfinished = place.folder / "data-unfinished"
            task.write_data(unfinished, place.seed)
            unfinished.rename(data)
        if trial.prepare is not None:
            trial.prepare(place)
    except subprocess.CalledProcessError as error:
        raise TrialFailed(
            f"{place.task}/{trial.name}, seed {place.seed}: its data could not be made: {error}"
        ) from None


def _run(trial: Trial, place: Place, watch: Watch) -> Outcome:
    log = place.folder / f"{trial.name}.log"
    load, began = os.getloadavg()[0], time.monotonic()
    with log.open("w") as output:
        command = [sys.executable, "-m", "pttrainer", "run", str(_job(place, trial))]
        # A session of its own: Ctrl-C comes here alone, and what it means to a trainer is said below.
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
            watch(trial, place)
            time.sleep(TICK_S)
    except BaseException:
        _end(process)
        raise
    _, status, used = ended
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


def _end(process: subprocess.Popen[bytes]) -> None:
    """Politely first; what is left of the trainer and its children is killed, at once where Ctrl-C comes again."""
    try:
        process.terminate()
        process.wait(ENDING_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _series(rows: list[dict[str, Any]], metric: str) -> list[list[float]]:
    return [[row["step"], round(row[metric], 4)] for row in rows if row.get(metric) is not None]


def _lowest(curves: list[list[list[float]]]) -> list[list[float]]:
    """At each step the lowest value."""
    return [min(points, key=lambda point: point[1]) for points in zip(*curves, strict=True)]
