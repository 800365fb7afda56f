"""Node pools and the end of what they were for: the job is over, suspended or deleted. Pure.

A pool has no owner reference, so the job carries a finalizer while it may hold one. Chips are given back after the
last pod is gone, because its checkpoint is saved on them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ptapi.conditions import ConditionType, Reason
from ptapi.status import CapacityStatus
from ptkube.resources import POSTTRAINJOBS
from ptoperator.capacity import is_open, release, uses_pools
from ptoperator.capacity.attempts import let_go
from ptoperator.capacity.cloud import CloudAction
from ptoperator.kube import labels
from ptoperator.kube.actions import Action, Patch
from ptoperator.observe.state import Observed
from ptoperator.plan.step import delete_jobset
from ptoperator.settings import Settings
from ptoperator.status.builder import Say, Says

_CAPACITY = ConditionType.CAPACITY_READY


@dataclass(frozen=True)
class GivenBack:
    """What to do, and what status says of capacity meanwhile."""

    status: CapacityStatus
    actions: tuple[Action | CloudAction, ...] = ()


def add_finalizer(seen: Observed) -> Patch:
    """Before the first pool. The version makes sure that nobody else's finalizer is lost."""
    return _with_finalizers(seen, [*_finalizers(seen), labels.FINALIZER])


def given_back(seen: Observed, settings: Settings) -> GivenBack | None:
    """Giving back the chips of a job that needs none now: pools, and its turn at those; None if it holds none."""
    capacity = seen.status.capacity
    is_held = capacity.node_pools or is_open(capacity) or (seen.cloud is not None and seen.cloud.of_job(seen.uid))
    if not is_held and not seen.booking.is_there:
        return None
    if seen.unfinished_pods or _is_jobset_at_work(seen):
        return GivenBack(capacity)
    cloud = seen.cloud
    if cloud is None:
        return GivenBack(let_go(capacity, seen.now, left=settings.has_gke and uses_pools(seen.job)))
    if cloud.trouble is not None:
        return GivenBack(capacity)
    left = bool(cloud.of_job(seen.uid)) or seen.booking.is_there
    actions = (*seen.booking.deletions(), *release(seen.uid, cloud, settings, seen.now))
    return GivenBack(let_go(capacity, seen.now, left=left), actions)


def leaving(seen: Observed, settings: Settings) -> tuple[Action | CloudAction, ...]:
    """A job that is being deleted: pods, then pools, then the finalizer."""
    if not seen.has_finalizer:
        return ()
    if seen.jobset is not None and seen.is_jobset_ours:
        return () if seen.is_jobset_deleting else (delete_jobset(seen),)
    if seen.unfinished_pods:
        return ()
    if seen.cloud is None:  # without a cloud nobody can say whether pools are left
        return () if seen.status.capacity.node_pools else (_without_finalizer(seen),)
    if seen.cloud.trouble is not None:
        return ()
    if seen.cloud.of_job(seen.uid) or seen.booking.is_there:
        return (*seen.booking.deletions(), *release(seen.uid, seen.cloud, settings, seen.now))
    return (_without_finalizer(seen),)


def told(seen: Observed, capacity: CapacityStatus) -> Says:
    """What is to be said of pools that are to go: what keeps them, that one is not ours any more, or that they went.
    capacity: what is written of it now."""
    if refusal := _why_kept(seen, capacity):
        return {_CAPACITY: Say(False, Reason.RELEASE_REFUSED, refusal)}
    is_held = bool(seen.cloud and seen.cloud.of_job(seen.uid)) or bool(capacity.node_pools)
    if is_held or seen.is_deleting:
        return {}
    if left := _left_behind(seen):
        words = f"node pool {', '.join(left)} is left, and is not known as this job's; hint: delete that node pool"
        return {_CAPACITY: Say(False, Reason.NOT_RELEASED, words)}
    said = seen.status.condition(_CAPACITY)
    was_refused = said is not None and said.reason == Reason.RELEASE_REFUSED
    if was_refused or (seen.status.capacity.node_pools and seen.status.phase.is_terminal):
        return {_CAPACITY: Say(False, Reason.RELEASED, "the node pools are given back")}
    return {}


def _why_kept(seen: Observed, capacity: CapacityStatus) -> str:
    """Why the pools do not go, if that does not pass by itself."""
    cloud, names = seen.cloud, ", ".join(each.name for each in capacity.node_pools)
    if cloud is None:
        words = f"node pool {names} is to be deleted, and the operator knows no GKE cluster; hint: set gke.project, "
        words += (
            f"gke.location and gke.cluster of its chart, or delete that node pool and the finalizer {labels.FINALIZER}"
        )
        return words if names and seen.is_deleting else ""
    if cloud.trouble is not None:
        what = f"node pool {names} is to be deleted" if names else "the job goes when it surely has no node pools"
        is_told = cloud.trouble.is_definite and (bool(names) or seen.is_deleting)
        return f"{what}, but GKE cannot be asked: {cloud.trouble.code}: {cloud.trouble.message}" if is_told else ""
    for pool in cloud.of_job(seen.uid):
        answer = cloud.answer(pool.name)
        if answer is not None and answer.trouble is not None and answer.trouble.is_definite:
            return f"node pool {pool.name} is to be deleted: {answer.trouble.code}: {answer.trouble.message}"
    return ""


def _left_behind(seen: Observed) -> list[str]:
    """Pools that the job held and that nobody gives back: their labels were changed, or no cloud is known any more."""
    held = [each.name for each in seen.status.capacity.node_pools]
    if seen.cloud is None:
        return held
    ours = {pool.name for pool in seen.cloud.pools}
    return [name for name in held if name in seen.cloud.names - ours]


def _is_jobset_at_work(seen: Observed) -> bool:
    """Whether it may still make pods: not while it is suspended, nor while Kueue, which has reserved no quota, holds it
    back."""
    if seen.is_held_by_kueue and seen.place is not None and not seen.place.has_quota:
        return False
    is_ours_to_resume = seen.is_jobset_suspended and not seen.jobset_queue
    is_over = seen.jobset_condition("Completed") or seen.jobset_condition("Failed")
    return seen.jobset is not None and seen.is_jobset_ours and not (is_over or is_ours_to_resume)


def _finalizers(seen: Observed) -> list[str]:
    return list(seen.job["metadata"].get("finalizers") or [])


def _without_finalizer(seen: Observed) -> Patch:
    return _with_finalizers(seen, [each for each in _finalizers(seen) if each != labels.FINALIZER])


def _with_finalizers(seen: Observed, finalizers: list[str]) -> Patch:
    meta = seen.job["metadata"]
    body = {"metadata": {"finalizers": finalizers, "resourceVersion": meta["resourceVersion"]}}
    return Patch(POSTTRAINJOBS, seen.name, seen.namespace, body)
