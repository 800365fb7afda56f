"""Follow a job of the demo to its end: phase from the cluster, steps and metrics from the run directory.

The run directory is fresher than the status, which the operator writes every few seconds.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptapi.run_directory import COMPLETION_LENGTH, LOSS, REWARD
from ptctl.demo.paths import NAMESPACE
from ptctl.demo.task_list import TaskList
from ptctl.errors import CliError
from ptctl.jobs.view import JobView, view
from ptctl.runs.storage import directory
from ptctl.ui.duration import short
from ptkube.errors import NotFound
from ptkube.resources import POSTTRAINJOBS

if TYPE_CHECKING:
    from ptkube.client import Kube

_POLL_S = 0.5


def follow(kube: Kube, name: str, run: Path, task_list: TaskList, series: str) -> None:
    """Return when the job has succeeded. Raises CliError with the job's own message when it has failed."""
    while True:
        try:
            job = view(kube.get(POSTTRAINJOBS, name, NAMESPACE))
        except NotFound as error:
            raise CliError(f"job {name} was deleted while the demo followed it") from error
        if job.phase == "Failed":
            raise CliError(
                f"job {name} failed: {job.failure or failed_message(job)}", f"its results so far are in {run}"
            )
        rows = directory.metrics(run)
        progress = directory.progress(run)
        task_list.update(
            name,
            describe(job, progress, rows),
            share(progress),
            [float(row[series]) for row in rows if series in row],
            series,
        )
        if job.phase == "Succeeded":
            return
        time.sleep(_POLL_S)


def describe(job: JobView, progress: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Return what the job is doing, in one line."""
    stage = str(progress.get("stage") or "")
    if not stage:
        return {"Pending": "accepted", "Starting": "starting the trainer"}.get(job.phase, job.phase.lower())
    step, total = int(progress.get("step") or 0), int(progress.get("totalSteps") or 0)
    parts = [f"step {step}/{total}"] if total else []
    if stage in directory.STAGES:
        parts.append(directory.STAGES[stage])
    elif total and step == 0:
        parts.append("first step")
    newest: dict[str, Any] = next((row for row in reversed(rows) if LOSS in row or REWARD in row), {})
    for key, label in ((REWARD, "reward"), (COMPLETION_LENGTH, "length"), (LOSS, "loss")):
        if key in newest and (key != LOSS or REWARD not in newest):
            parts.append(f"{label} {newest[key]:.3g}")
    eta = progress.get("etaSeconds")
    if eta and stage == "training":
        parts.append(f"{short(eta)} left")
    return ", ".join(parts)


def share(progress: dict[str, Any]) -> float | None:
    """Return the share of the steps that is done; None before the total is known."""
    total = int(progress.get("totalSteps") or 0)
    return min(1.0, int(progress.get("step") or 0) / total) if total else None


def failed_message(job: JobView) -> str:
    """Return the reason and message of the Failed condition."""
    condition = job.condition("Failed") or {}
    return f"{condition.get('reason', '')}: {condition.get('message', '')}".strip(": ")
