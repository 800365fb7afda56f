"""Obtaining the chips of a job: one look decides one step. Pure.

Attempts run one after the other (`attempts`); within one, each slice is looked at for itself (`slices`) and all must
come: a slice that cannot be had ends the attempt for all, and what it left is deleted before the next begins.
"""

from __future__ import annotations

from dataclasses import replace

from ptapi.failures import FailureClass
from ptapi.status import CapacityAttempt, CapacityStatus
from ptkube import timestamps
from ptoperator.capacity.attempts import (
    Candidate,
    begin,
    candidate_of,
    candidates,
    give_up,
    is_open,
    line_at,
    noted_ready,
    overdue,
    start_again,
)
from ptoperator.capacity.cloud import ClaimPool, Cloud, CloudAction, CreatePool, DeletePool, PoolState
from ptoperator.capacity.cloud_errors import Trouble
from ptoperator.capacity.pathways_head_pool import heads_first
from ptoperator.capacity.queue_turn import in_line, no_room
from ptoperator.capacity.queued_provisioning import until_booked
from ptoperator.capacity.request import Asked, Decision
from ptoperator.capacity.slices import SliceView, view
from ptoperator.kube.actions import Action

NO_CLOUD = Trouble(
    FailureClass.CONFIG_ERROR,
    "NO_CLUSTER",
    "the operator makes no node pools; hint: set gke.project, gke.location and gke.cluster of its chart, or use "
    "capacity: [{type: existing}]",
)


def provide(asked: Asked) -> Decision:
    """What to do now towards the chips of a job that has no pods."""
    if _is_plain(asked):
        return Decision(True, asked.so_far)
    cloud, attempt = asked.cloud, is_open(asked.so_far)
    candidate = candidate_of(asked, attempt) if attempt else None
    if attempt is not None and candidate is not None and candidate.option.type == "existing":
        return in_line(asked, attempt, candidate) or Decision(True, asked.so_far)
    if attempt is None:
        return between(asked) or begin(replace(asked, so_far=_without_pools(asked.so_far)))
    if unheard := _unheard(asked):
        return unheard
    if candidate is None:
        return start_again(asked, "its zone is no longer one of the cluster's")
    if cloud is None:
        return give_up(asked, NO_CLOUD)
    return (
        in_line(asked, attempt, candidate)
        or heads_first(asked, cloud, candidate)
        or _pools(asked, cloud, attempt, candidate)
    )


def _is_plain(asked: Asked) -> bool:
    """Nothing but nodes that are there, for which nobody stands in line, and no second choice."""
    found = candidates(asked)
    return (
        len(found) == 1
        and found[0].option.type == "existing"
        and found[0].wait_s is None
        and not line_at(asked, found[0])
    )


def between(asked: Asked) -> Decision | None:
    """No attempt lasts. What is waited for before the next one: until what the last one left is gone, and the pause is
    over; None: for nothing."""
    if unheard := _unheard(asked):
        return unheard
    cloud, uid = asked.cloud, asked.layout.uid
    held = cloud.of_job(uid) if cloud else ()
    if held or asked.booking.is_there:
        deletions = tuple(DeletePool(pool.name, uid) for pool in cloud.changeable(uid)) if cloud else ()
        actions: tuple[Action | CloudAction, ...] = (*asked.booking.deletions(), *deletions)
        named = f"node pool {', '.join(pool.name for pool in held)}" if held else asked.booking.words
        return Decision(False, asked.so_far, actions, message=f"waiting until {named} is deleted")
    wait = pause_left(asked)
    if wait <= 0:
        return None
    last = asked.so_far.attempts[-1]
    message = f"starting over in {timestamps.duration(wait)}; last, {last.option}: {last.outcome}"
    return Decision(False, _without_pools(asked.so_far), message=message)


def pause_left(asked: Asked) -> float:
    """Seconds until the list is tried from its beginning; 0 or less: now."""
    until = timestamps.from_text(asked.so_far.retry_after)
    return 0.0 if until is None else (until - asked.now).total_seconds()


def _unheard(asked: Asked) -> Decision | None:
    """GKE does not say what is there, so nothing is decided."""
    said = asked.cloud.trouble if asked.cloud else None
    if said is None:
        return None
    return Decision(False, asked.so_far, message=f"GKE cannot be asked: {said.code}: {said.message}")


def _without_pools(so_far: CapacityStatus) -> CapacityStatus:
    return so_far.model_copy(update={"node_pools": []})


def _pools(asked: Asked, cloud: Cloud, attempt: CapacityAttempt, candidate: Candidate) -> Decision:
    """One pool per slice."""
    views = _views(asked, cloud, candidate)
    if attempt.ready is not None and (gone := _gone(asked, cloud)):
        return start_again(asked, f"{attempt.outcome}; then node pool {gone} was gone")
    over = next((each.over for each in views if each.over), None)
    known = [each.pool for each in views if each.pool is not None]
    so_far = asked.so_far.model_copy(update={"node_pools": known})
    if over is not None:
        return give_up(replace(asked, so_far=so_far), over)
    actions = tuple(action for each in views for action in each.actions)
    short = _short(asked, cloud, candidate, actions)
    if short is not None:
        return give_up(replace(asked, so_far=so_far), short)
    if all(each.is_ready for each in views):
        is_booked = candidate.option.type == "queuedProvisioning"
        unbooked = until_booked(asked, so_far, attempt, candidate) if is_booked else None
        if unbooked is not None:
            return replace(unbooked, actions=(*actions, *unbooked.actions))
        ready = so_far if candidate.is_ready_with_pods else noted_ready(so_far, asked.now)
        return Decision(True, ready, actions, pools=tuple(pool.name for pool in known), is_booked=is_booked)
    late = overdue(candidate, attempt, asked.now)
    if late is not None:
        return give_up(replace(asked, so_far=so_far), late)
    return Decision(False, so_far, actions, message=_waiting_words(candidate, views))


def _views(asked: Asked, cloud: Cloud, candidate: Candidate) -> list[SliceView]:
    taken: frozenset[str] = frozenset()
    views: list[SliceView] = []
    for index in range(asked.layout.slices):
        found = view(asked, cloud, candidate, index, taken)
        taken |= {action.pool for action in found.actions if isinstance(action, ClaimPool)}
        taken |= {found.pool.name} if found.pool else set()
        views.append(found)
    return views


def _short(asked: Asked, cloud: Cloud, candidate: Candidate, actions: tuple[CloudAction, ...]) -> Trouble | None:
    """The reservation has less left than the pools to be made now need: no use in asking GKE for them."""
    known = cloud.reservation if candidate.option.type == "reservation" else None
    needed = asked.layout.hosts * sum(isinstance(action, CreatePool) for action in actions)
    return no_room(asked, candidate, known.free, needed) if known is not None and needed > known.free else None


def _gone(asked: Asked, cloud: Cloud) -> str:
    """A pool that the job had and has no longer."""
    live = {pool.name for pool in cloud.of_job(asked.layout.uid) if pool.state is not PoolState.STOPPING}
    return next((each.name for each in asked.so_far.node_pools if each.name not in live), "")


def _waiting_words(candidate: Candidate, views: list[SliceView]) -> str:
    """`spot in us-east5-a: 1 of 2 node pools ready; pool llama-1f3a-1 is PROVISIONING`."""
    ready = sum(each.is_ready for each in views)
    first = next((each.words for each in views if not each.is_ready and each.words), "")
    return f"{candidate.words}: {ready} of {len(views)} node pools ready{f'; {first}' if first else ''}"
