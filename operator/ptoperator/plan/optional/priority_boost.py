"""Keep Kueue from preempting work that no checkpoint holds yet: a priority boost on the job's Workload. Pure.

Kueue adds the annotation `kueue.x-k8s.io/priority-boost` (0.17, feature gate PriorityBoost) to a Workload's priority,
both in the queue and when it chooses whom to preempt. The boost grows by quarters with the time since the newest
checkpoint, so that among equal jobs the one that loses least is preempted, and returns to none with each checkpoint. A
job that waits has none: it would pass others in the queue. Nor has one that has saved nothing for very long: it would
be protected for ever.
"""

from dataclasses import dataclass

from ptapi.conditions import ConditionType
from ptkube import timestamps
from ptkube.resources import WORKLOADS, Manifest
from ptoperator.kube import labels
from ptoperator.kube.actions import Patch
from ptoperator.observe.state import Observed
from ptoperator.settings import Settings

_QUARTERS = 4
_LIMIT_FACTOR = 4
"""After so many times `kueue_boost_seconds` without a checkpoint the boost ends."""


@dataclass(frozen=True)
class BoostPlan:
    """What to write, and the seconds until the boost may change; None: only with an event."""

    actions: tuple[Patch, ...] = ()
    requeue_after: float | None = None


def plan_priority_boost(state: Observed, settings: Settings) -> BoostPlan:
    """Return the patch of the job's Workload, if its boost is not what it should be."""
    workload = state.workload or (state.kueue.workload if state.kueue else None)
    if workload is None or not settings.kueue_priority_boost:
        return BoostPlan()
    unsaved_s, full_s = _unsaved_s(state), max(settings.kueue_boost_seconds, 1.0)
    wanted = 0 if unsaved_s is None else boost(unsaved_s, settings.kueue_priority_boost, full_s)
    due_s = None if unsaved_s is None else _next_change_s(unsaved_s, full_s)
    if wanted == _current(workload):
        return BoostPlan((), due_s)
    if state.now != state.observed_at:  # the Workload was read some time ago: read it again first
        return BoostPlan((), 0.0)
    metadata = {"annotations": {labels.KUEUE_PRIORITY_BOOST: str(wanted) if wanted else None}}
    name, namespace = workload["metadata"]["name"], state.job.namespace
    return BoostPlan((Patch(WORKLOADS, name, namespace, {"metadata": metadata}),), due_s)


def boost(unsaved_s: float, maximum: int, full_s: float) -> int:
    """Return the boost of a job whose newest checkpoint is so old. full_s: when it reaches the maximum."""
    if unsaved_s >= _LIMIT_FACTOR * full_s:
        return 0
    return maximum * min(_QUARTERS, int(_QUARTERS * unsaved_s / full_s)) // _QUARTERS


def _next_change_s(unsaved_s: float, full_s: float) -> float | None:
    """Return the seconds until the boost changes without a checkpoint."""
    changes = (*(full_s * quarter / _QUARTERS for quarter in range(1, _QUARTERS + 1)), _LIMIT_FACTOR * full_s)
    return next((at - unsaved_s for at in changes if at > unsaved_s), None)


def _unsaved_s(state: Observed) -> float | None:
    """Return the seconds of training since the newest checkpoint; None for a job that does not run."""
    running = state.status.condition(ConditionType.RUNNING)
    if running is None or running.status != "True" or state.is_jobset_suspended:
        return None
    progress = state.run.progress
    checkpoints = (state.status.checkpoint, progress.checkpoint if progress else None)
    times = [running.last_transition_time, *(each.time for each in checkpoints if each is not None)]
    return timestamps.seconds_since(max(times), state.now)


def _current(workload: Manifest) -> int:
    text = str((workload["metadata"].get("annotations") or {}).get(labels.KUEUE_PRIORITY_BOOST) or "0")
    return int(text) if text.lstrip("-").isdigit() else 0
