"""Status updates of a job whose pods do not run: suspended, in the way of itself, waiting, or restarting. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from ptapi.conditions import ConditionType, Phase, Reason
from ptapi.failures import REACTIONS, FailureClass
from ptapi.spec import KIND
from ptapi.status import CapacityStatus, FailureStatus
from ptkube import timestamps
from ptkube.resources import Manifest
from ptoperator.kueue import workload
from ptoperator.kueue.workload import KueueState
from ptoperator.observe.state import Observed
from ptoperator.render import Layout
from ptoperator.status import terminal_phases
from ptoperator.status.builder import ConditionUpdate, ConditionUpdates, StatusUpdate

QUOTA, CAPACITY = ConditionType.QUOTA_RESERVED, ConditionType.CAPACITY_READY
RUNNING, SUSPENDED = ConditionType.RUNNING, ConditionType.SUSPENDED
_SHOWN_NAMES = 3


def suspended(layout: Layout, state: Observed, *, has_chips: bool) -> StatusUpdate:
    """Report a suspended job, whose pods may still be saving and whose node pools may still be released."""
    pods = state.unfinished_pods
    if pods:
        grace = layout.job.spec.run_policy.termination_grace_period_seconds
        message = f"{named(pods)} saving and stopping, for up to {timestamps.duration(grace)}"
        conditions = {SUSPENDED: ConditionUpdate(False, Reason.SUSPENDING, message)}
        phase = state.status.phase if state.status.phase is not Phase.PENDING else Phase.SUSPENDED
        return StatusUpdate(phase, conditions)
    chips = "its chips are being released" if has_chips else "no chips"
    message = f"runPolicy.suspend is true; no pods, {chips}{checkpoint_message(state)}"
    return StatusUpdate(
        Phase.SUSPENDED,
        {
            SUSPENDED: ConditionUpdate(True, Reason.SUSPENDED, message),
            RUNNING: ConditionUpdate(False, Reason.SUSPENDED, message),
            CAPACITY: ConditionUpdate(False, Reason.SUSPENDED, message),
        },
    )


def cleaning_up(layout: Layout, state: Observed) -> StatusUpdate:
    """Report that earlier objects are still being deleted."""
    what = named(state.unfinished_pods) if state.unfinished_pods else f"JobSet {layout.jobset}"
    return _before_jobset(state, Reason.CLEANING_UP, f"waiting for the previous {what} to be deleted")


def name_taken(layout: Layout, state: Observed) -> StatusUpdate:
    """Report that another owner's JobSet has the name."""
    message = f"JobSet {layout.jobset} exists and belongs to another owner; hint: delete that JobSet, or rename the job"
    return _before_jobset(state, Reason.CREATE_FAILED, message)


def create_refused(layout: Layout, state: Observed) -> StatusUpdate:
    """Report that the API server rejects an object."""
    return _before_jobset(state, Reason.CREATE_FAILED, f"the API server rejects a request: {state.rejection}")


def restarting(state: Observed, cause: FailureStatus | None, pause_s: float) -> StatusUpdate:
    """Report a restart for a failure of the machine, not of the job. cause: not counted yet."""
    why = cause or state.status.failure
    message = f"after {terminal_phases.describe_failure(why)}; " if why else ""
    what = "an outage" if why is not None and why.failure_class == FailureClass.NETWORK else "a repair"
    is_free = why is not None and not REACTIONS[FailureClass(why.failure_class)].charged
    because = f", because {what} takes minutes" if is_free else ""
    wait = f"restarts in {timestamps.duration(pause_s)}{because}" if pause_s else "restarts"
    free = "not charged to runPolicy.maxRestarts; " if is_free else ""
    message = f"{message}{free}{wait}{checkpoint_message(state)}"
    return StatusUpdate(
        Phase.RESTARTING, {RUNNING: ConditionUpdate(False, Reason.RESTARTING, message)}, restarted=cause
    )


def waiting_for_capacity(state: Observed, message: str, capacity: CapacityStatus) -> StatusUpdate:
    """Report that node pools are being created, or tried elsewhere."""
    conditions = {CAPACITY: ConditionUpdate(False, Reason.WAITING_FOR_CAPACITY, message), **resumed(state)}
    if state.status.condition(RUNNING):
        conditions[RUNNING] = ConditionUpdate(False, Reason.WAITING_FOR_CAPACITY, message)
    return StatusUpdate(Phase.PROVISIONING, conditions, capacity=capacity)


def waiting_for_quota(state: Observed, message: str, capacity: CapacityStatus) -> StatusUpdate:
    """Report a job without quota that will ask for it again."""
    waiting = waiting_for_capacity(state, message, capacity)
    return replace(
        waiting, conditions={**waiting.conditions, QUOTA: ConditionUpdate(False, Reason.WAITING_FOR_QUOTA, message)}
    )


def waiting_in_queue(state: Observed, message: str, capacity: CapacityStatus) -> StatusUpdate:
    """Report a job that waits for its turn at contended chips."""
    return replace(waiting_for_quota(state, message, capacity), phase=Phase.QUEUED)


def queued(layout: Layout, state: Observed) -> StatusUpdate:
    """Report that Kueue has reserved no quota, or revoked it."""
    before = state.status.condition(QUOTA)
    was_admitted = before is not None and before.reason in (Reason.ADMITTED, Reason.EVICTED)
    kueue = state.kueue or KueueState(str(state.jobset_queue or layout.job.spec.queue))
    if was_admitted:
        condition = ConditionUpdate(
            False, Reason.EVICTED, workload.eviction_message(kueue, layout.accelerator, layout.beside)
        )
    else:
        condition = ConditionUpdate(
            False, Reason.WAITING_FOR_QUOTA, workload.waiting_message(kueue, layout.accelerator, layout.beside)
        )
    conditions = {
        QUOTA: condition,
        CAPACITY: ConditionUpdate(False, condition.reason, condition.message),
        RUNNING: ConditionUpdate(False, condition.reason, condition.message),
    }
    return StatusUpdate(Phase.QUEUED, {**conditions, **resumed(state)})


def is_of_earlier(state: Observed) -> bool:
    """Return True if the JobSet belongs to an earlier job of this name that is being garbage-collected."""
    owners = state.jobset["metadata"].get("ownerReferences") or [] if state.jobset else []
    return any(owner.get("kind") == KIND and owner.get("name") == state.job.name for owner in owners)


def resumed(state: Observed) -> ConditionUpdates:
    """Report the resumption of a job that was suspended before."""
    if state.status.condition(SUSPENDED) is None:
        return {}
    return {SUSPENDED: ConditionUpdate(False, Reason.RESUMED, "runPolicy.suspend is false again")}


def _before_jobset(state: Observed, reason: Reason, message: str) -> StatusUpdate:
    conditions = {CAPACITY: ConditionUpdate(False, reason, message)}
    if state.status.condition(RUNNING):
        conditions[RUNNING] = ConditionUpdate(False, reason, message)
    return StatusUpdate(Phase.PENDING if state.status.phase is Phase.PENDING else Phase.PROVISIONING, conditions)


def checkpoint_message(state: Observed) -> str:
    """Return `; continues from step N`; empty before the first checkpoint."""
    checkpoint = state.run.progress.checkpoint if state.run.progress else state.status.checkpoint
    return f"; continues from step {checkpoint.step}" if checkpoint else ""


def named(pods: Sequence[Manifest]) -> str:
    """Return `pod a` or `pods a, b, c and 5 more`."""
    names = sorted(str(pod["metadata"]["name"]) for pod in pods)
    shown, rest = names[:_SHOWN_NAMES], len(names) - _SHOWN_NAMES
    more = f" and {rest} more" if rest > 0 else ""
    return f"pod{'s' if len(names) > 1 else ''} {', '.join(shown)}{more}"
