"""A run directory on this machine in place of a job in a cluster: what `ptctl train` writes, as the verbs read jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptctl.errors import InputError, MissingError
from ptctl.jobs.lookup import fetch
from ptctl.jobs.view import TERMINAL
from ptctl.ui.app import App, Target
from ptkube import timestamps
from ptkube.resources import Manifest

if TYPE_CHECKING:
    from pydantic import BaseModel

    from ptapi.run_directory import Lease, Termination

_SPEC = "spec.yaml"


def is_directory(name: str) -> bool:
    """Return True if the name is a path; the name of a job contains no slash."""
    return "/" in name or name in (".", "..")


def find(app: App, target: Target, name: str) -> Manifest:
    """Return the job of that name in the cluster, or the job of a run directory on this machine."""
    return read(Path(name.removeprefix("file://"))) if is_directory(name) else fetch(app.connect(target), target, name)


def read(directory: Path) -> Manifest:
    """Return the job that runs or ran in the directory, with a status made from the trainer's documents."""
    try:
        text = (directory / _SPEC).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        runs = ", ".join(str(spec.parent) for spec in sorted(directory.glob(f"*/{_SPEC}"))[:3])
        hint = f"did you mean {runs}?" if runs else "a run directory is <output.uri>/<job name>"
        raise MissingError(f"{directory}: not a run directory (it has no {_SPEC})", hint) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{directory / _SPEC}: not a text file (byte {error.start} is not UTF-8)") from error
    return with_status(definition(text, f"{directory / _SPEC}"), f"file://{directory.absolute()}")


def definition(text: str, where: str) -> Manifest:
    """Return the job that the text of a run's spec.yaml defines."""
    from ptapi.text import kubectl_yaml

    job = kubectl_yaml.read(text)
    if not isinstance(job, dict):
        raise InputError(f"{where}: {type(job).__name__}; accepted: the job that runs here")
    return job


def with_status(job: Manifest, run_uri: str) -> Manifest:
    """Return the job with a status made from the trainer's documents, on `file://` or `gs://`."""
    return {**job, "status": {**_status(run_uri), "links": {"run": run_uri}}}


def _status(run_uri: str) -> dict[str, Any]:
    from ptoperator.observe.run_directory import read_lease, read_progress, read_termination
    from ptoperator.status.progress import checkpoint_status, metrics_status, progress_status

    progress, end = read_progress(run_uri), read_termination(run_uri)
    phase = _phase(read_lease(run_uri), end)
    status: dict[str, Any] = {"phase": phase}
    if end is not None and phase == "Failed":
        status["failure"] = {"failureClass": end.failure_class, "message": end.message, "exitCode": end.exit_code}
    if progress is not None and progress.started:
        status["startTime"] = progress.started
        if phase in TERMINAL:
            status["completionTime"] = progress.updated
    if progress is not None:
        parts: dict[str, BaseModel] = {
            "progress": progress_status(progress, phase == "Running"),
            "metrics": metrics_status(progress.metrics, 0),
        }
        if progress.checkpoint is not None:
            parts["checkpoint"] = checkpoint_status(progress.checkpoint)
        status |= {name: part.model_dump(mode="json", by_alias=True, exclude_none=True) for name, part in parts.items()}
    return status


def _phase(lease: Lease | None, end: Termination | None) -> str:
    """Return Running while a process has the lease, else how the last one ended; Suspended: it can be resumed."""
    from ptapi.failures import ExitCode

    if lease is not None and not lease.released:
        heartbeat = timestamps.from_text(lease.heartbeat)
        limit = timedelta(seconds=lease.limit_seconds)
        return "Running" if heartbeat and datetime.now(UTC) - heartbeat < limit else "Suspended"
    if end is None or end.exit_code == ExitCode.PREEMPTED_SAVED:
        return "Suspended"
    return "Failed" if end.exit_code else "Succeeded"
