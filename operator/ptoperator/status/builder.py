"""The status of a job: the only place that makes conditions, phases, messages and numbers for people.

`Situation` is what plan found; `build` turns it, the old status and what was observed into the new status. It is
pure: the same input gives the same status, and `differs` tells whether it is worth a write.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from ptapi.conditions import ConditionType, Phase, Reason
from ptapi.status import (
    CapacityStatus,
    Condition,
    FailureStatus,
    PostTrainJobStatus,
    PreflightStatus,
)
from ptkube import timestamps
from ptoperator.failures.redaction import redacted
from ptoperator.observe.state import Observed
from ptoperator.render import Layout
from ptoperator.status.links import links
from ptoperator.status.progress import checkpoint_status, metrics_status, progress_status
from ptoperator.status.restart_counts import restart_counts
from ptoperator.status.time_and_cost import account

_MESSAGE_LIMIT = 4096


@dataclass(frozen=True)
class Say:
    """One condition: whether it holds, why in one word, and why in a sentence."""

    holds: bool
    reason: str
    message: str = ""


Says = dict[ConditionType, Say]


@dataclass(frozen=True)
class Situation:
    """What plan found: the phase, the conditions it can speak about, and the failure that ended the job.

    restarted: a failure after which the job starts again by the operator's decision, which no JobSet counts.
    """

    phase: Phase
    says: Says = field(default_factory=dict)
    failure: FailureStatus | None = None
    capacity: CapacityStatus | None = None
    restarted: FailureStatus | None = None
    preflight: PreflightStatus | None = None


def build(seen: Observed, situation: Situation, layout: Layout | None) -> PostTrainJobStatus:
    """The new status. `layout` is None for a spec that cannot be laid out."""
    old, phase = seen.status, situation.phase
    restarts, newest = restart_counts(seen)
    if situation.restarted is not None:
        newest = situation.restarted
        restarts[newest.failure_class] = restarts.get(newest.failure_class, 0) + 1
    updates: dict[str, object] = {
        "phase": phase,
        "observed_generation": seen.generation,
        "conditions": merged(old.conditions, situation.says, seen.generation, seen.now),
        "restarts": restarts,
        "failure": _told(situation.failure or newest or old.failure),
        "preflight": situation.preflight or old.preflight,
        "capacity": situation.capacity or old.capacity,
        "start_time": old.start_time or _start_time(situation, seen.now),
        "completion_time": timestamps.to_text(seen.now) if phase.is_terminal else None,
        **_of_progress(seen, phase, layout),
        **account(seen, layout),
    }
    if layout is not None:
        updates |= {
            "algorithm": layout.job.spec.algorithm.label,
            "chips": 0 if layout.accelerator.is_cpu else layout.accelerator.total_chips,
            "job_set": old.job_set if phase is Phase.PREFLIGHT or situation.preflight else layout.jobset,
            "links": links(layout),
        }
    return old.model_copy(update=updates)


def differs(old: PostTrainJobStatus, new: PostTrainJobStatus) -> bool:
    """Whether somebody would see a difference. Sums of time and cost alone are not worth a write."""
    return _without_sums(old) != _without_sums(new)


def is_only_progress(old: PostTrainJobStatus, new: PostTrainJobStatus) -> bool:
    """Whether nothing changed but numbers that change all the time; those may wait for their turn."""
    return _without_progress(old) == _without_progress(new)


def merged(old: list[Condition], says: Says, generation: int, now: datetime) -> list[Condition]:
    """Conditions in the order of their types; what is not spoken about stays as it was."""
    by_type = {condition.type: condition for condition in old}
    for kind, say in says.items():
        by_type[kind] = _condition(by_type.get(kind), kind, say, generation, now)
    return [by_type[kind] for kind in ConditionType if kind in by_type]


def _condition(old: Condition | None, kind: ConditionType, say: Say, generation: int, now: datetime) -> Condition:
    status = "True" if say.holds else "False"
    unchanged = old is not None and old.status == status
    return Condition(
        type=kind,
        status=status,
        reason=say.reason,
        message=redacted(say.message)[:_MESSAGE_LIMIT],
        last_transition_time=old.last_transition_time if old and unchanged else timestamps.to_text(now),
        observed_generation=generation,
    )


def _told(failure: FailureStatus | None) -> FailureStatus | None:
    """Whoever said it, a secret is not repeated."""
    if failure is None:
        return None
    return failure.model_copy(update={"message": redacted(failure.message), "log": redacted(failure.log)})


def _start_time(situation: Situation, now: datetime) -> str | None:
    capacity = situation.says.get(ConditionType.CAPACITY_READY)
    return timestamps.to_text(now) if capacity and capacity.reason == Reason.NODES_READY else None


def _of_progress(seen: Observed, phase: Phase, layout: Layout | None) -> dict[str, object]:
    progress = seen.progress
    if progress is None or progress.job_uid not in ("", seen.uid):
        return {}
    chips = layout.accelerator.total_chips if layout else 0
    found: dict[str, object] = {
        "progress": progress_status(progress, phase is Phase.RUNNING),
        "metrics": metrics_status(progress.metrics, chips),
    }
    if progress.checkpoint is not None:
        found["checkpoint"] = checkpoint_status(progress.checkpoint)
    return found


_SUMS: dict[str, object] = {"accounted_until": None, "time": None, "cost": None}
_PROGRESS: dict[str, object] = {**_SUMS, "progress": None, "metrics": None, "checkpoint": None}


def _without_sums(status: PostTrainJobStatus) -> PostTrainJobStatus:
    return status.model_copy(update=_SUMS)


def _without_progress(status: PostTrainJobStatus) -> PostTrainJobStatus:
    return status.model_copy(update=_PROGRESS)
