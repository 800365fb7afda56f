"""Experiment trackers: Weights & Biases, MLflow, Trackio, and OpenTelemetry (`spec.tracking`).

A tracker is told of metrics and never waited for: each has a thread of its own, which starts it, sends to it, and ends
it. One that fails is named once in the log; the run goes on, and `metrics.jsonl` has everything. A resumed run
continues the tracked run of its directory, whose id stands in `tracking.json`; steps that were reported before the
resume are not reported again, because a resumed run computes them anew.
"""

import importlib.util
import netrc
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from ptapi.spec import PostTrainJob
from ptapi.spec.tracking import OpenTelemetry, Tracking, Wandb
from pttrainer.errors import ConfigError
from pttrainer.runtime.io.directory import Directory
from pttrainer.runtime.io.place import Place
from pttrainer.runtime.reporting import spans
from pttrainer.runtime.reporting.experiment_trackers import mlflow_run, trackio_run, wandb_run
from pttrainer.runtime.reporting.experiment_trackers.background import Background
from pttrainer.runtime.reporting.experiment_trackers.tracked_run import Start, TrackedRun, Tracker

_WANDB = "https://api.wandb.ai"
_PACKAGES = {
    "wandb": ("wandb", "wandb"),
    "mlflow": ("mlflow", "mlflow-skinny"),
    "trackio": ("trackio", "trackio"),
    "open_telemetry": ("opentelemetry.exporter.otlp.proto.http", "opentelemetry-exporter-otlp-proto-http"),
}
"""Each tracker's module, and the package that has it."""


def check(tracking: Tracking | None) -> None:
    """Raise ConfigError for a tracker that can never work: no package, no key."""
    if tracking is None:
        return
    for name, (module, package) in _PACKAGES.items():
        if getattr(tracking, name) is not None and not _is_installed(module):
            raise ConfigError(
                f"spec.tracking.{Tracking.model_fields[name].alias or name}: the package {package} is not installed; "
                "hint: pip install 'posttrain[trackers]', or an image with it"
            )
    if tracking.wandb is not None:
        _check_key(tracking.wandb)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of what the module is within
        return False


def start(job: PostTrainJob, place: Place, reported: int, note: Callable[[str], None]) -> list[Background]:
    """Start the job's trackers, which know the steps up to `reported` from an earlier attempt."""
    run = TrackedRun(job, place, place.path if isinstance(place, Directory) else Path(tempfile.gettempdir()))
    tracking = job.spec.tracking or Tracking()
    if tracking.open_telemetry is not None:
        spans.start()
    return [Background(name, partial(begin, run), reported, note) for name, begin in _starts(tracking, note)]


def _starts(tracking: Tracking, note: Callable[[str], None]) -> Iterator[tuple[str, Start]]:
    """Yield each tracker that the job names, and how to start it."""
    if tracking.wandb is not None:
        yield "Weights & Biases", partial(wandb_run.start, tracking.wandb)
    if tracking.mlflow is not None:
        yield "MLflow", partial(mlflow_run.start, tracking.mlflow)
    if tracking.trackio is not None:
        yield "Trackio", partial(trackio_run.start, tracking.trackio)
    if tracking.open_telemetry is not None:
        yield "OpenTelemetry", partial(_open_telemetry, tracking.open_telemetry, note)


def _open_telemetry(spec: OpenTelemetry, note: Callable[[str], None], run: TrackedRun) -> Tracker:
    """Import it where it is asked for, on its own thread: the package is optional."""
    from pttrainer.runtime.reporting.experiment_trackers import open_telemetry

    return open_telemetry.start(spec, note, run)


def _check_key(wandb: Wandb) -> None:
    """Raise ConfigError if nothing holds a key: wandb would ask a person for it."""
    if wandb.mode == "offline" or os.environ.get("WANDB_API_KEY"):
        return
    host = urlsplit(wandb.base_url or os.environ.get("WANDB_BASE_URL") or _WANDB).hostname or ""
    with suppress(OSError, netrc.NetrcParseError):
        if netrc.netrc().authenticators(host):
            return
    raise ConfigError(
        f"spec.tracking.wandb.apiKeySecretRef: unset, and nothing else holds a key for {host}; accepted: a Secret, "
        "WANDB_API_KEY in spec.env, or `wandb login` on this machine; hint: mode: offline sends nothing"
    )
