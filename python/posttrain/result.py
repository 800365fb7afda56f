"""What a run that has ended leaves: the model and its evaluation, or the failure."""

from collections.abc import Callable
from dataclasses import dataclass, field

from posttrain.errors import JobFailed
from posttrain.rows import Rows
from ptctl.jobs.view import JobView

_EVALUATION = "eval/"


@dataclass(frozen=True)
class Result:
    """What a run that succeeded leaves: `path` is its directory; one of `model` and `adapters` is the export."""

    path: str
    model: str | None
    adapters: str | None
    metrics: Callable[[], Rows] = field(repr=False)
    """Reads the run directory."""

    @property
    def evaluation(self) -> Rows:
        """Return a row for each step that was evaluated: `step` and the metrics of held-out data."""
        return _evaluation(self.metrics())


def succeeded(job: JobView) -> JobView:
    """Return a job that has succeeded. Raises JobFailed for one that has failed."""
    if job.phase == "Succeeded":
        return job
    condition = job.condition("Failed") or {}
    failure = (job.raw.get("status") or {}).get("failure") or {}
    text = str(condition.get("message") or failure.get("message") or f"job {job.name!r} has failed")
    message, _, hint = text.partition("; hint: ")
    raise JobFailed(str(failure.get("failureClass") or condition.get("reason") or "Unknown"), message, hint)


def _evaluation(metrics: Rows) -> Rows:
    return Rows(
        {"step": row["step"], **{name: value for name, value in row.items() if name.startswith(_EVALUATION)}}
        for row in metrics
        if any(name.startswith(_EVALUATION) for name in row)
    )
