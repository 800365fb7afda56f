"""MLflow: runs of a tracking server, through its own client."""

import os
import re
from collections.abc import Mapping
from typing import Any

from ptapi.spec.tracking import Mlflow
from pttrainer.runtime.reporting.experiment_trackers.tracked_run import TrackedRun

_PARAMS_PER_CALL = 100
_LONGEST_PARAM = 6000
_FOREIGN = re.compile(r"[^\w\-. :/]")


def start(spec: Mlflow, run: TrackedRun) -> "MlflowRun":
    """Start or continue the run; the job's settings become its parameters."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # 7 of them log for two minutes
    from mlflow import MlflowClient
    from mlflow.entities import Param

    client = MlflowClient(tracking_uri=spec.tracking_uri)
    experiment = client.get_experiment_by_name(spec.experiment)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(spec.experiment)

    def create() -> str:
        return str(client.create_run(experiment_id, run_name=run.name).info.run_id)

    run_id, is_new = run.id_of("mlflow", create)
    if not is_new:
        client.update_run(run_id, status="RUNNING")
        return MlflowRun(client, run_id)
    params = [Param(name, text[:_LONGEST_PARAM]) for name, text in run.flat_settings().items()]
    for first in range(0, len(params), _PARAMS_PER_CALL):
        client.log_batch(run_id, params=params[first : first + _PARAMS_PER_CALL])
    return MlflowRun(client, run_id)


class MlflowRun:
    """A run of an MLflow server."""

    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self._id = client, run_id

    def log(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        """Report a step; characters that MLflow takes in no name become `_`."""
        from mlflow.entities import Metric

        at_ms = int(time_s * 1000)
        metrics = [Metric(_FOREIGN.sub("_", name), value, at_ms, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def finish(self, *, is_failed: bool) -> None:
        """End the run."""
        self._client.set_terminated(self._id, "FAILED" if is_failed else "FINISHED")
