"""Obtain the chips of a job: one reconcile decides one step. Pure.

Attempts run one after the other (`attempts`). Within one, each slice is handled separately (`slices`) and all must
succeed: one failed slice ends the attempt for all, and its pools are deleted before the next begins.
"""

from dataclasses import replace

from ptapi.failures import FailureClass
from ptapi.status import CapacityAttempt, CapacityStatus
from ptkube import timestamps
from ptoperator.capacity.attempts import (
    MAX_BACKOFF_S,
    Candidate,
    begin_attempt,
    candidate_of,
    candidates,
    fail_attempt,
    mark_ready,
    open_attempt,
    queue_at,
    restart_attempts,
    timeout_failure,
)
from ptoperator.capacity.cloud import ClaimPool, Cloud, CloudAction, CreatePool, DeletePool, PoolState
from ptoperator.capacity.cloud_errors import CloudFailure
from ptoperator.capacity.node_pools.pathways_head_pool import ensure_pathways_head_pool
from ptoperator.capacity.node_pools.slice_pool import SliceState, slice_state
from ptoperator.capacity.queued_provisioning import wait_for_nodes
from ptoperator.capacity.request import CapacityRequest, Decision
from ptoperator.capacity.waiting_line.turn import no_free_capacity, wait_for_turn
from ptoperator.kube.actions import Action

NO_CLOUD = CloudFailure(
    FailureClass.CONFIG_ERROR,
    "NO_CLUSTER",
    "the operator creates no node pools; hint: set gke.project, gke.location and gke.cluster of the chart, or use "
    "capacity: [{type: existing}]",
)


def provide(request: CapacityRequest) -> Decision:
    """Return the next step towards the chips of a job that has no pods."""
    if _is_plain(request):
        return Decision(True, request.capacity)
    cloud, attempt = request.cloud, open_attempt(request.capacity)
    candidate = candidate_of(request, attempt) if attempt else None
    if attempt is not None and candidate is not None and candidate.option.type == "existing":
        return wait_for_turn(request, attempt, candidate) or Decision(True, request.capacity)
    if attempt is None:
        return between_attempts(request) or begin_attempt(replace(request, capacity=_without_pools(request.capacity)))
    if unavailable := _cloud_unavailable(request):
        return unavailable
    if candidate is None:
        return restart_attempts(request, "its zone is no longer in the cluster")
    if cloud is None:
        return fail_attempt(request, NO_CLOUD)
    return (
        wait_for_turn(request, attempt, candidate)
        or ensure_pathways_head_pool(request, cloud, candidate)
        or _pools(request, cloud, attempt, candidate)
    )


def _is_plain(request: CapacityRequest) -> bool:
    """Return True if existing nodes without a queue are the only option."""
    choices = candidates(request)
    return (
        len(choices) == 1
        and choices[0].option.type == "existing"
        and choices[0].wait_s is None
        and not queue_at(request, choices[0])
    )


def between_attempts(request: CapacityRequest) -> Decision | None:
    """Wait until the last attempt's pools are deleted and the pause is over; None if there is nothing to wait for."""
    if unavailable := _cloud_unavailable(request):
        return unavailable
    cloud, uid = request.cloud, request.layout.uid
    pools = cloud.of_job(uid) if cloud else ()
    if pools or request.provisioning.exists:
        deletions = tuple(DeletePool(pool.name, uid) for pool in cloud.changeable(uid)) if cloud else ()
        actions: tuple[Action | CloudAction, ...] = (*request.provisioning.deletions(), *deletions)
        named = f"node pool {', '.join(pool.name for pool in pools)}" if pools else request.provisioning.description
        return Decision(False, request.capacity, actions, message=f"waiting for {named} to be deleted")
    wait = backoff_left_s(request)
    if wait <= 0:
        return None
    last = request.capacity.attempts[-1]
    message = f"starting over in {timestamps.duration(wait)}; last, {last.option}: {last.outcome}"
    return Decision(False, _without_pools(request.capacity), message=message)


def backoff_left_s(request: CapacityRequest) -> float:
    """Return the seconds until the list starts over; 0 or less: now. A clock that was ahead wrote a longer pause."""
    until = timestamps.from_text(request.capacity.retry_after)
    left_s = 0.0 if until is None else (until - request.now).total_seconds()
    return left_s if left_s <= MAX_BACKOFF_S else 0.0


def _cloud_unavailable(request: CapacityRequest) -> Decision | None:
    """Wait if GKE does not answer: nothing can be decided."""
    failure = request.cloud.failure if request.cloud else None
    if failure is None:
        return None
    return Decision(False, request.capacity, message=f"GKE cannot be queried: {failure.code}: {failure.message}")


def _without_pools(capacity: CapacityStatus) -> CapacityStatus:
    return capacity.model_copy(update={"node_pools": []})


def _pools(request: CapacityRequest, cloud: Cloud, attempt: CapacityAttempt, candidate: Candidate) -> Decision:
    """Obtain one pool per slice, and per sampler on TPUs."""
    slices = _slice_states(request, cloud, candidate)
    if attempt.ready is not None and (lost := _lost_pool(request, cloud)):
        return restart_attempts(request, f"{attempt.outcome}; then node pool {lost} was gone")
    failure = next((each.failure for each in slices if each.failure), None)
    known = [each.pool for each in slices if each.pool is not None]
    capacity = request.capacity.model_copy(update={"node_pools": known})
    if failure is not None:
        return fail_attempt(replace(request, capacity=capacity), failure)
    actions = tuple(action for each in slices for action in each.actions)
    shortfall = _reservation_shortfall(request, cloud, candidate, actions)
    if shortfall is not None:
        return fail_attempt(replace(request, capacity=capacity), shortfall)
    if all(each.is_ready for each in slices):
        is_queued_provisioning = candidate.option.type == "queuedProvisioning"
        pending = wait_for_nodes(request, capacity, attempt, candidate) if is_queued_provisioning else None
        if pending is not None:
            return replace(pending, actions=(*actions, *pending.actions))
        ready = capacity if candidate.is_ready_with_pods else mark_ready(capacity, request.now)
        return Decision(
            True,
            ready,
            actions,
            pools=tuple(pool.name for pool in known),
            is_queued_provisioning=is_queued_provisioning,
        )
    late = timeout_failure(candidate, attempt, request.now)
    if late is not None:
        return fail_attempt(replace(request, capacity=capacity), late)
    return Decision(False, capacity, actions, message=_waiting_message(candidate, slices))


def _slice_states(request: CapacityRequest, cloud: Cloud, candidate: Candidate) -> list[SliceState]:
    taken: frozenset[str] = frozenset()
    slices: list[SliceState] = []
    for index in range(request.layout.pool_count):
        slice_ = slice_state(request, cloud, candidate, index, taken)
        taken |= {action.pool for action in slice_.actions if isinstance(action, ClaimPool)}
        taken |= {slice_.pool.name} if slice_.pool else set()
        slices.append(slice_)
    return slices


def _reservation_shortfall(
    request: CapacityRequest, cloud: Cloud, candidate: Candidate, actions: tuple[CloudAction, ...]
) -> CloudFailure | None:
    """Return a failure if the reservation has less left than the missing pools need, so that GKE is not asked."""
    known = cloud.reservation if candidate.option.type == "reservation" else None
    needed = sum(action.manifest["initial_node_count"] for action in actions if isinstance(action, CreatePool))
    return (
        no_free_capacity(request, candidate, known.free, needed) if known is not None and needed > known.free else None
    )


def _lost_pool(request: CapacityRequest, cloud: Cloud) -> str:
    """Return a pool that the job had and lost; empty if there is none."""
    live = {pool.name for pool in cloud.of_job(request.layout.uid) if pool.state is not PoolState.STOPPING}
    return next((each.name for each in request.capacity.node_pools if each.name not in live), "")


def _waiting_message(candidate: Candidate, slices: list[SliceState]) -> str:
    """`spot in us-east5-a: 1 of 2 node pools ready; pool llama-1f3a-1 is PROVISIONING`."""
    ready = sum(each.is_ready for each in slices)
    first = next((each.message for each in slices if not each.is_ready and each.message), "")
    return f"{candidate.description}: {ready} of {len(slices)} node pools ready{f'; {first}' if first else ''}"
