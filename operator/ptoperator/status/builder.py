"""Build a job's status: the only place that writes conditions, phases, messages and numbers for people.

`StatusUpdate` is what plan decided; `build` combines it with the old status and the observed state. It is pure: the
same input gives the same status, and `differs` tells whether it is worth a write.
"""

from dataclasses import dataclass, field
from datetime import datetime

from ptapi.accelerators.roles import Role
from ptapi.conditions import ConditionType, Phase, Reason
from ptapi.status import (
    CapacityStatus,
    Condition,
    FailureStatus,
    PostTrainJobStatus,
    PreflightStatus,
    SamplersStatus,
    ServiceStatus,
)
from ptkube import timestamps
from ptkube.objects import holds
from ptkube.resources import Manifest
from ptoperator.failures.redaction import redact
from ptoperator.observe import elastic_slices
from ptoperator.observe.state import Observed
from ptoperator.render import Layout
from ptoperator.status.links import links
from ptoperator.status.progress import checkpoint_status, metrics_status, progress_status
from ptoperator.status.restart_counts import restart_counts, with_in_place
from ptoperator.status.time_and_cost import account_time

_MESSAGE_LIMIT = 4096


@dataclass(frozen=True)
class ConditionUpdate:
    """One condition: whether it holds, the reason in one word, and the message."""

    holds: bool
    reason: str
    message: str = ""


ConditionUpdates = dict[ConditionType, ConditionUpdate]


@dataclass(frozen=True)
class StatusUpdate:
    """The phase, the conditions that changed, and the failure that ended the job.

    restarted: a failure after which the operator restarts the job, which no JobSet counts. has_jobset: the JobSet is
    created with this update.
    """

    phase: Phase
    conditions: ConditionUpdates = field(default_factory=dict)
    failure: FailureStatus | None = None
    capacity: CapacityStatus | None = None
    restarted: FailureStatus | None = None
    preflight: PreflightStatus | None = None
    staged_model: str = ""
    has_jobset: bool = False


def build(state: Observed, update: StatusUpdate, layout: Layout | None) -> PostTrainJobStatus:
    """Return the new status. layout: None for an invalid spec."""
    old, phase = state.status, update.phase
    restarts, newest = restart_counts(state)
    if update.restarted is not None:
        newest = update.restarted
        restarts[newest.failure_class] = restarts.get(newest.failure_class, 0) + 1
    slices = elastic_slices.status(state) or old.slices
    fields: dict[str, object] = {
        "phase": phase,
        "observed_generation": state.job.generation,
        "conditions": merge_conditions(old.conditions, update.conditions, state.job.generation, state.now),
        "restarts": with_in_place(restarts, slices),
        "slices": slices,
        "failure": _redacted_failure(update.failure or newest or old.failure),
        "preflight": update.preflight or old.preflight,
        "staged_model": update.staged_model or old.staged_model,
        "capacity": update.capacity or old.capacity,
        "start_time": old.start_time or _start_time(update, state.now),
        "completion_time": timestamps.to_text(state.now) if phase.is_terminal else None,
        **_progress_fields(state, phase, layout),
        **account_time(state, layout),
    }
    if layout is not None:
        fields |= {
            "algorithm": layout.job.spec.label,
            "chips": sum(layout.held_chips.values()),
            "samplers": _samplers(layout, state),
            "services": _services(layout, state),
            "job_set": layout.jobset if update.has_jobset or state.is_jobset_ours else old.job_set,
            "links": links(layout),
        }
    return old.model_copy(update=fields)


def _samplers(layout: Layout, state: Observed) -> SamplersStatus | None:
    """Return which samplers are ready; None for a job without samplers of its own."""
    return SamplersStatus(**_counts(layout.samplers, state)) if layout.samplers else None


def _services(layout: Layout, state: Observed) -> list[ServiceStatus]:
    """Return which replicas of each service are ready."""
    services = (role for role in layout.beside if role.service is not None)
    return [ServiceStatus(name=role.name, **_counts(role, state)) for role in services]


def _counts(role: Role, state: Observed) -> Manifest:
    away = list(elastic_slices.incomplete(role, filter(_ready, state.current_pods)))
    return {"total": role.count, "ready": role.count - len(away), "away": away}


def _ready(pod: Manifest) -> bool:
    return holds(pod, "Ready")


def differs(old: PostTrainJobStatus, new: PostTrainJobStatus) -> bool:
    """Return True if a reader would see a difference. Sums of time and cost alone are not worth a write."""
    return _without_sums(old) != _without_sums(new)


def is_only_progress(old: PostTrainJobStatus, new: PostTrainJobStatus) -> bool:
    """Return True if only progress changed, in numbers or in Running's message; those updates are rate-limited."""
    return _without_progress(old) == _without_progress(new)


def merge_conditions(
    old: list[Condition], conditions: ConditionUpdates, generation: int, now: datetime
) -> list[Condition]:
    """Return the conditions in the order of their types; those without an update stay."""
    by_type = {condition.type: condition for condition in old}
    for kind, update in conditions.items():
        by_type[kind] = _condition(by_type.get(kind), kind, update, generation, now)
    return [by_type[kind] for kind in ConditionType if kind in by_type]


def _condition(
    old: Condition | None, kind: ConditionType, update: ConditionUpdate, generation: int, now: datetime
) -> Condition:
    status = "True" if update.holds else "False"
    unchanged = old is not None and old.status == status
    return Condition(
        type=kind,
        status=status,
        reason=update.reason,
        message=redact(update.message)[:_MESSAGE_LIMIT],
        last_transition_time=old.last_transition_time if old and unchanged else timestamps.to_text(now),
        observed_generation=generation,
    )


def _redacted_failure(failure: FailureStatus | None) -> FailureStatus | None:
    """Remove secrets from a failure, whatever its source."""
    if failure is None:
        return None
    return failure.model_copy(update={"message": redact(failure.message), "log": redact(failure.log)})


def _start_time(update: StatusUpdate, now: datetime) -> str | None:
    capacity = update.conditions.get(ConditionType.CAPACITY_READY)
    return timestamps.to_text(now) if capacity and capacity.reason == Reason.NODES_READY else None


def _progress_fields(state: Observed, phase: Phase, layout: Layout | None) -> dict[str, object]:
    progress = state.run.progress
    if progress is None or progress.job_uid not in ("", state.job.uid):
        return {}
    chips = layout.accelerator.total_chips if layout else 0
    fields: dict[str, object] = {
        "progress": progress_status(progress, phase is Phase.RUNNING),
        "metrics": metrics_status(progress.metrics, chips),
    }
    if progress.checkpoint is not None:
        fields["checkpoint"] = checkpoint_status(progress.checkpoint)
    return fields


_SUMS: dict[str, object] = {"accounted_until": None, "time": None, "cost": None}
_PROGRESS: dict[str, object] = {**_SUMS, "progress": None, "metrics": None, "checkpoint": None}


def _without_sums(status: PostTrainJobStatus) -> PostTrainJobStatus:
    return status.model_copy(update=_SUMS)


def _without_progress(status: PostTrainJobStatus) -> PostTrainJobStatus:
    conditions = [
        each.model_copy(update={"message": ""}) if each.type is ConditionType.RUNNING else each
        for each in status.conditions
    ]
    return status.model_copy(update={**_PROGRESS, "conditions": conditions})
