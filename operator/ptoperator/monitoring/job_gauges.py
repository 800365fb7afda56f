"""A job's numbers for Prometheus, from its status. Pure.

One time series per unfinished job and number, and of very many jobs only the newest: a thousand jobs are ten thousand
series, which a small Prometheus handles easily.
"""

from dataclasses import dataclass, field

from ptapi.conditions import ConditionType, Phase
from ptapi.status import PostTrainJobStatus
from ptkube import timestamps
from ptoperator.job import JobObject

SHOWN_JOBS = 1000

GAUGES: dict[str, str] = {
    "posttrain_job_step": "Optimizer steps done",
    "posttrain_job_target_steps": "Optimizer steps of the run",
    "posttrain_job_loss": "Training loss",
    "posttrain_job_reward": "Mean reward",
    "posttrain_job_tokens_per_second_per_chip": "Throughput",
    "posttrain_job_mfu": "Model FLOPs utilisation",
    "posttrain_job_chips": "Chips that the job holds",
    "posttrain_job_chip_hours": "Chip-hours used so far",
    "posttrain_job_restarts": "Restarts so far",
    "posttrain_job_heartbeat_timestamp_seconds": "Unix time of the trainer's last heartbeat",
    "posttrain_job_transition_timestamp_seconds": "Unix time of the job's latest condition transition",
}


@dataclass(frozen=True)
class JobNumbers:
    """The numbers of one job."""

    namespace: str
    name: str
    phase: str
    created: str = ""
    values: dict[str, float] = field(default_factory=dict)

    @property
    def is_shown(self) -> bool:
        """Return True until the job finishes."""
        return self.phase not in (Phase.SUCCEEDED, Phase.FAILED)


def numbers_of(job: JobObject) -> JobNumbers:
    """Read the numbers from a job's status; unreadable ones are left out."""
    status = job.status
    capacity = status.condition(ConditionType.CAPACITY_READY)
    has_chips = capacity is not None and capacity.status == "True"
    values: dict[str, float | None] = {
        "posttrain_job_step": status.progress.step or None,
        "posttrain_job_target_steps": status.progress.total or None,
        "posttrain_job_loss": _number(status.metrics.loss),
        "posttrain_job_reward": _number(status.metrics.reward),
        "posttrain_job_tokens_per_second_per_chip": _number(status.metrics.tokens_per_second_per_chip),
        "posttrain_job_mfu": _number(status.metrics.mfu),
        "posttrain_job_chips": status.chips if has_chips else 0,
        "posttrain_job_chip_hours": _number(status.cost.chip_hours),
        "posttrain_job_restarts": sum(status.restarts.values()),
        "posttrain_job_heartbeat_timestamp_seconds": _time(status.progress.updated),
        "posttrain_job_transition_timestamp_seconds": _latest_transition(status) or _time(job.created),
    }
    return JobNumbers(
        namespace=job.namespace,
        name=job.name,
        phase=status.phase,
        created=job.created,
        values={gauge: float(value) for gauge, value in values.items() if value is not None},
    )


def shown(jobs: list[JobNumbers], limit: int = SHOWN_JOBS) -> list[JobNumbers]:
    """Return the newest unfinished jobs."""
    living = sorted((job for job in jobs if job.is_shown), key=lambda job: job.created, reverse=True)
    return living[:limit]


def _latest_transition(status: PostTrainJobStatus) -> float | None:
    times = [_time(condition.last_transition_time) for condition in status.conditions]
    return max((time for time in times if time is not None), default=None)


def _time(text: str) -> float | None:
    time = timestamps.from_text(text)
    return time.timestamp() if time else None


def _number(text: str) -> float | None:
    """Parse a number, which status holds as text because a printer column needs text."""
    try:
        return float(text) if text else None
    except ValueError:
        return None
