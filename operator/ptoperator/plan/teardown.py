"""Release the node pools of a job that is finished, suspended or being deleted. Pure.

A pool has no owner reference, so the job carries a finalizer while it may hold one. Chips are released after the last
pod is gone, because its checkpoint is saved on them.
"""

from dataclasses import dataclass

from ptapi.conditions import ConditionType, Reason
from ptapi.status import CapacityStatus
from ptkube.resources import POSTTRAINJOBS
from ptoperator.capacity import open_attempt, release
from ptoperator.capacity.attempts import mark_released
from ptoperator.capacity.cloud import CloudAction
from ptoperator.kube import labels
from ptoperator.kube.actions import Action, Patch
from ptoperator.observe.state import Observed
from ptoperator.plan.step_result import delete_jobset
from ptoperator.settings import Settings
from ptoperator.status.builder import ConditionUpdate, ConditionUpdates

_CAPACITY = ConditionType.CAPACITY_READY


@dataclass(frozen=True)
class CapacityRelease:
    """What to do, and the capacity in status meanwhile."""

    status: CapacityStatus
    actions: tuple[Action | CloudAction, ...] = ()


def add_finalizer(state: Observed) -> Patch:
    """Add the finalizer before the first pool. The version keeps other finalizers from being lost."""
    return _with_finalizers(state, [*state.job.finalizers, labels.FINALIZER])


def release_capacity(state: Observed, settings: Settings) -> CapacityRelease | None:
    """Release the chips of a job that needs none now, and its turn at them; None if it holds none."""
    capacity = state.status.capacity
    is_held = (
        capacity.node_pools or open_attempt(capacity) or (state.cloud is not None and state.cloud.of_job(state.job.uid))
    )
    if not is_held and not state.provisioning.exists:
        return None
    if state.unfinished_pods or _may_create_pods(state):
        return CapacityRelease(capacity)
    cloud = state.cloud
    if cloud is None:
        return CapacityRelease(mark_released(capacity, state.now, left=settings.has_gke and state.job.uses_pools))
    if cloud.failure is not None:
        return CapacityRelease(capacity)
    left = bool(cloud.of_job(state.job.uid)) or state.provisioning.exists
    actions = (*state.provisioning.deletions(), *release(state.job.uid, cloud, settings, state.now))
    return CapacityRelease(mark_released(capacity, state.now, left=left), actions)


def deletion_actions(state: Observed, settings: Settings) -> tuple[Action | CloudAction, ...]:
    """Remove a deleting job's pods, then its pools, then the finalizer."""
    if not state.job.has_finalizer:
        return ()
    if state.jobset is not None and state.is_jobset_ours:
        return () if state.is_jobset_deleting else (delete_jobset(state),)
    if state.unfinished_pods:
        return ()
    if state.cloud is None:  # without a cloud nobody can say whether pools are left
        return () if state.status.capacity.node_pools else (_without_finalizer(state),)
    if state.cloud.failure is not None:
        return ()
    if state.cloud.of_job(state.job.uid) or state.provisioning.exists:
        return (*state.provisioning.deletions(), *release(state.job.uid, state.cloud, settings, state.now))
    return (_without_finalizer(state),)


def release_conditions(state: Observed, capacity: CapacityStatus) -> ConditionUpdates:
    """Report what blocks the release of pools, that one is no longer known as ours, or that they are released.

    capacity: what status is about to say of it.
    """
    if refusal := _release_blocker(state, capacity):
        return {_CAPACITY: ConditionUpdate(False, Reason.RELEASE_REFUSED, refusal)}
    is_held = bool(state.cloud and state.cloud.of_job(state.job.uid)) or bool(capacity.node_pools)
    if is_held or state.job.is_deleting:
        return {}
    if left := _unmanaged_pools(state):
        message = f"node pool {', '.join(left)} is left without this job's labels; hint: delete that node pool"
        return {_CAPACITY: ConditionUpdate(False, Reason.NOT_RELEASED, message)}
    condition = state.status.condition(_CAPACITY)
    if condition is not None and condition.reason == Reason.WRITE_FAILED:
        return {_CAPACITY: ConditionUpdate(False, Reason.RELEASED, "the job's objects are deleted")}
    was_refused = condition is not None and condition.reason == Reason.RELEASE_REFUSED
    if was_refused or (state.status.capacity.node_pools and state.status.phase.is_terminal):
        return {_CAPACITY: ConditionUpdate(False, Reason.RELEASED, "the node pools are released")}
    return {}


def _release_blocker(state: Observed, capacity: CapacityStatus) -> str:
    """Return what keeps the pools, if it does not pass by itself."""
    cloud, names = state.cloud, ", ".join(each.name for each in capacity.node_pools)
    if cloud is None:
        message = f"node pool {names} cannot be deleted, because no GKE cluster is configured; hint: set gke.project, "
        message += (
            f"gke.location and gke.cluster of the chart, or delete that node pool and the finalizer {labels.FINALIZER}"
        )
        return message if names and state.job.is_deleting else ""
    if cloud.failure is not None:
        waiting = "the job will be deleted once GKE confirms that it has no node pools"
        what = f"node pool {names} is being released" if names else waiting
        reason = f"GKE cannot be queried: {cloud.failure.code}: {cloud.failure.message}"
        is_reported = cloud.failure.is_definite and (bool(names) or state.job.is_deleting)
        return f"{what}, but {reason}" if is_reported else ""
    for pool in cloud.of_job(state.job.uid):
        answer = cloud.answer(pool.name)
        if answer is not None and answer.failure is not None and answer.failure.is_definite:
            return f"node pool {pool.name} is to be deleted: {answer.failure.code}: {answer.failure.message}"
    return ""


def _unmanaged_pools(state: Observed) -> list[str]:
    """Return pools of the job that nobody will delete: their labels were changed, or the cloud is no longer known."""
    pools = [each.name for each in state.status.capacity.node_pools]
    if state.cloud is None:
        return pools
    ours = {pool.name for pool in state.cloud.pools}
    return [name for name in pools if name in state.cloud.names - ours]


def _may_create_pods(state: Observed) -> bool:
    """Return True if the JobSet may still create pods.

    Not while it is suspended, nor while Kueue holds it without quota.
    """
    if state.is_suspended_by_kueue and state.kueue is not None and not state.kueue.has_quota:
        return False
    is_ours_to_resume = state.is_jobset_suspended and not state.jobset_queue
    is_over = state.jobset_condition("Completed") or state.jobset_condition("Failed")
    return state.jobset is not None and state.is_jobset_ours and not (is_over or is_ours_to_resume)


def _without_finalizer(state: Observed) -> Patch:
    return _with_finalizers(state, [each for each in state.job.finalizers if each != labels.FINALIZER])


def _with_finalizers(state: Observed, finalizers: list[str]) -> Patch:
    body = {"metadata": {"finalizers": finalizers, "resourceVersion": state.job.version}}
    return Patch(POSTTRAINJOBS, state.job.name, state.job.namespace, body)
