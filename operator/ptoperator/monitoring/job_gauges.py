"""A job's numbers for Prometheus, from its status. Pure.

One time series per unfinished job and number, and of very many jobs only the newest: a thousand jobs are ten thousand
series, which a small Prometheus handles easily.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ptapi.conditions import ConditionType, Phase
from ptkube import timestamps
from ptkube.objects import holds
from ptkube.resources import Manifest

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
_FROM_METRICS = {
    "posttrain_job_loss": "loss",
    "posttrain_job_reward": "reward",
    "posttrain_job_tokens_per_second_per_chip": "tokensPerSecondPerChip",
    "posttrain_job_mfu": "mfu",
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


def numbers_of(job: Manifest) -> JobNumbers:
    """Read the numbers from a manifest; unreadable ones are left out."""
    meta, status = job["metadata"], job.get("status") or {}
    progress, metrics = status.get("progress") or {}, status.get("metrics") or {}
    found: dict[str, float | None] = {
        "posttrain_job_step": _number(progress.get("step")),
        "posttrain_job_target_steps": _number(progress.get("total")),
        **{gauge: _number(metrics.get(key)) for gauge, key in _FROM_METRICS.items()},
        "posttrain_job_chips": float(status.get("chips") or 0) if holds(job, ConditionType.CAPACITY_READY) else 0.0,
        "posttrain_job_chip_hours": _number((status.get("cost") or {}).get("chipHours")),
        "posttrain_job_restarts": float(sum((status.get("restarts") or {}).values())),
        "posttrain_job_heartbeat_timestamp_seconds": _time(progress.get("updated")),
        "posttrain_job_transition_timestamp_seconds": _latest_transition(status)
        or _time(meta.get("creationTimestamp")),
    }
    return JobNumbers(
        namespace=str(meta["namespace"]),
        name=str(meta["name"]),
        phase=str(status.get("phase") or Phase.PENDING),
        created=str(meta.get("creationTimestamp") or ""),
        values={gauge: value for gauge, value in found.items() if value is not None},
    )


def shown(jobs: list[JobNumbers], limit: int = SHOWN_JOBS) -> list[JobNumbers]:
    """Return the newest unfinished jobs."""
    living = sorted((job for job in jobs if job.is_shown), key=lambda job: job.created, reverse=True)
    return living[:limit]


def _latest_transition(status: Manifest) -> float | None:
    times = [_time(each.get("lastTransitionTime")) for each in status.get("conditions") or []]
    return max((time for time in times if time is not None), default=None)


def _time(text: object) -> float | None:
    time = timestamps.from_text(text) if isinstance(text, str) else None
    return time.timestamp() if time else None


def _number(value: object) -> float | None:
    """Parse a number, which status holds as text if a printer column needs text."""
    try:
        return float(value) if isinstance(value, (int, float, str)) and value != "" else None
    except ValueError:
        return None
