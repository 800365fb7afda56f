"""Node pools and the end of what they were for: the job is over, suspended or deleted. Pure.

A pool has no owner reference, so the job carries a finalizer while it may hold one. Chips are given back after the
last pod is gone, because its checkpoint is saved on them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ptapi.conditions import ConditionType, Reason
from ptapi.status import CapacityStatus
from ptoperator import labels
from ptoperator.actions import Action, Patch
from ptoperator.capacity import is_open, release, uses_pools
from ptoperator.capacity.attempts import let_go
from ptoperator.capacity.cloud import CloudAction
from ptoperator.case import delete_jobset
from ptoperator.observed import Observed
from ptoperator.resources import POSTTRAINJOBS
from ptoperator.settings import Settings
from ptoperator.status import Say, Says


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


def told(seen: Observed) -> Says:
    """What is to be said of pools that are to go: that GKE refuses, and later that they went after all."""
    held = seen.cloud.of_job(seen.uid) if seen.cloud else ()
    for pool in held:
        answer = seen.cloud.answer(pool.name) if seen.cloud else None
        if answer is not None and answer.trouble is not None and answer.trouble.is_definite:
            refusal = f"node pool {pool.name} is to be deleted: {answer.trouble.code}: {answer.trouble.message}"
            return {ConditionType.CAPACITY_READY: Say(False, Reason.RELEASE_REFUSED, refusal)}
    said = seen.status.condition(ConditionType.CAPACITY_READY)
    is_over = not held and not seen.status.capacity.node_pools and not seen.is_deleting
    if said is None or said.reason != Reason.RELEASE_REFUSED or not is_over:
        return {}
    return {ConditionType.CAPACITY_READY: Say(False, Reason.RELEASED, "the node pools are given back")}


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
