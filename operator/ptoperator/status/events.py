"""Kubernetes Events: what `kubectl describe ptj` shows of a job's life. Pure.

An event is the difference between two statuses. Its name is derived from the job, the kind of change and the previous
state, so that a repeated write after a crash finds it written.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from ptapi.conditions import ConditionType, Reason
from ptapi.spec import API_GROUP, API_VERSION, KIND
from ptapi.status import Condition, PostTrainJobStatus
from ptkube import timestamps
from ptkube.resources import Manifest
from ptoperator.observe.state import Observed
from ptoperator.status import terminal_phases

_COMPONENT = "posttrain-operator"
_MESSAGE_LIMIT = 1024
_QUIET = (
    Reason.PODS_STARTING, Reason.NO_QUEUE, Reason.PREFLIGHT_SKIPPED, Reason.PREFLIGHT_RUNNING, Reason.SUCCEEDED,
)  # fmt: skip
_WARNINGS = (
    Reason.CREATE_FAILED, Reason.WRITE_FAILED, Reason.EVICTED, Reason.INVALID_SPEC, Reason.OUTPUT_CONFLICT,
    Reason.DOES_NOT_FIT, Reason.BAR_NOT_MET, Reason.SERVERS_OFF,
    Reason.SANDBOXES_NOT_SERVED, Reason.SANDBOX_BUDGET_SPENT,
    Reason.PREFLIGHT_UNDECIDED, Reason.RELEASE_REFUSED, Reason.NOT_RELEASED,
)  # fmt: skip


@dataclass(frozen=True)
class JobEvent:
    """A change that is worth an event. mark: distinguishes this occurrence from an earlier one."""

    reason: str
    message: str
    is_warning: bool = False
    mark: str = ""


def events_between(old: PostTrainJobStatus, new: PostTrainJobStatus) -> list[JobEvent]:
    """Return the changes between two statuses, in the order of the events."""
    restarts = (*_restarted(old, new), *_restarted_in_place(old, new))
    return [*_created(old, new), *_failed_attempts(old, new), *restarts, *_changed(old, new)]


def manifest(state: Observed, event: JobEvent) -> Manifest:
    """Return the Event's manifest."""
    mark = f"{state.job.uid}/{event.reason}/{event.mark}"
    time = timestamps.to_text(state.now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{state.job.name}.{hashlib.sha256(mark.encode()).hexdigest()[:16]}",
            "namespace": state.job.namespace,
        },
        "involvedObject": {
            "apiVersion": f"{API_GROUP}/{API_VERSION}",
            "kind": KIND,
            "name": state.job.name,
            "namespace": state.job.namespace,
            "uid": state.job.uid,
        },
        "type": "Warning" if event.is_warning else "Normal",
        "reason": event.reason,
        "message": event.message[:_MESSAGE_LIMIT],
        "source": {"component": _COMPONENT},
        "reportingComponent": f"{API_GROUP}/{_COMPONENT}",
        "reportingInstance": _COMPONENT,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }


def _created(old: PostTrainJobStatus, new: PostTrainJobStatus) -> Iterator[JobEvent]:
    if new.job_set and not old.job_set and not new.phase.is_terminal:
        yield JobEvent(Reason.CREATED, f"JobSet {new.job_set}")


def _failed_attempts(old: PostTrainJobStatus, new: PostTrainJobStatus) -> Iterator[JobEvent]:
    """Report attempts at capacity that failed."""
    reported = {(each.option, each.started) for each in old.capacity.attempts if each.ended}
    for each in new.capacity.attempts:
        if each.ended and each.failure_class and (each.option, each.started) not in reported:
            message = f"{each.option}: {each.outcome}"
            yield JobEvent(Reason.CAPACITY_UNAVAILABLE, message, True, f"{each.option}/{each.started}")


def _restarted(old: PostTrainJobStatus, new: PostTrainJobStatus) -> Iterator[JobEvent]:
    before, after = sum(old.pod_restarts.values()), sum(new.pod_restarts.values())
    if after > before and new.failure:
        yield JobEvent(
            Reason.RESTARTING,
            f"restart {after} after {terminal_phases.describe_failure(new.failure)}",
            True,
            str(after),
        )


def _restarted_in_place(old: PostTrainJobStatus, new: PostTrainJobStatus) -> Iterator[JobEvent]:
    before = {} if old.slices is None else old.slices.restarts
    if new.slices is None or new.slices.restarts == before:
        return
    kinds = [kind for kind, count in new.slices.restarts.items() if count > before.get(kind, 0)]
    total = sum(new.slices.restarts.values())
    message = f"restart {total} in place ({', '.join(kinds)}), on {new.slices.training} of {new.slices.total} slices"
    yield JobEvent(Reason.RESTARTING, message, True, f"in place/{total}")


def _changed(old: PostTrainJobStatus, new: PostTrainJobStatus) -> Iterator[JobEvent]:
    for condition in new.conditions:
        before = old.condition(condition.type)
        is_changed = before is None or (before.status, before.reason) != (condition.status, condition.reason)
        if new.phase.is_terminal and condition.type in (ConditionType.STAGED, ConditionType.PREFLIGHTED):
            continue  # Failed says it
        if is_changed and _is_notable(condition):
            mark = f"{condition.type}/{before.reason}/{before.last_transition_time}" if before else condition.type
            yield JobEvent(condition.reason, condition.message, _is_warning(condition), mark)


def _is_notable(condition: Condition) -> bool:
    """Return True if the condition is worth an event.

    Running and CapacityReady only when they hold; of a finished job only Complete and Failed.
    """
    if condition.reason in _WARNINGS or condition.type in (ConditionType.COMPLETE, ConditionType.FAILED):
        return condition.reason not in _REPORTED_ELSEWHERE.get(condition.type, ())
    if condition.type in (ConditionType.RUNNING, ConditionType.CAPACITY_READY):
        return condition.status == "True"
    if condition.type is ConditionType.QUOTA_RESERVED:
        return condition.reason != Reason.NO_QUEUE
    return condition.reason not in _QUIET


_REPORTED_ELSEWHERE: dict[ConditionType, set[Reason]] = {
    ConditionType.CAPACITY_READY: {Reason.EVICTED},
    ConditionType.RUNNING: {*_WARNINGS} - {Reason.WRITE_FAILED},
}
"""The same thing said by two conditions is told once."""


def _is_warning(condition: Condition) -> bool:
    return condition.reason in _WARNINGS or condition.type is ConditionType.FAILED
