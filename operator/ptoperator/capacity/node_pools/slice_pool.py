"""The state of one slice of the open attempt, and what to do for it. Pure; computed at every reconcile.

A slice's pool is found by its labels, whatever its name: it was created for the slice or taken over. If there is none,
an idle one is taken over, or one is created under a name that GKE lets exist once.
"""

import itertools
from dataclasses import dataclass

from ptapi.failures import FailureClass
from ptapi.status import NodePoolStatus
from ptkube import timestamps
from ptoperator.capacity.attempts import USUAL_WAIT_S, Candidate, has_next, open_attempt
from ptoperator.capacity.cloud import ClaimPool, Cloud, CloudAction, CreatePool, DeletePool, Operation, Pool, PoolState
from ptoperator.capacity.cloud_errors import CloudFailure
from ptoperator.capacity.request import CapacityRequest
from ptoperator.kube import names
from ptoperator.render.node_pool import is_flex, node_pool, owner_labels, shape

_LAST_MINUTE_S = 60
"""A pool that is about to be deleted for being idle is not taken over."""
_POLLS_FOR_RIGHTS = 12
"""A missing right is believed after so many polls: Google takes two minutes to let a new grant work everywhere."""


@dataclass(frozen=True)
class SliceState:
    """Where a slice stands. message: what it waits for. failure: why the attempt cannot succeed."""

    pool: NodePoolStatus | None = None
    is_ready: bool = False
    actions: tuple[CloudAction, ...] = ()
    message: str = ""
    failure: CloudFailure | None = None


def slice_state(
    request: CapacityRequest, cloud: Cloud, candidate: Candidate, index: int, taken: frozenset[str]
) -> SliceState:
    """Return the state of one slice. taken: pools that other slices of this job take over in this reconcile."""
    uid = request.layout.uid
    pools = sorted((p for p in cloud.of_job(uid) if p.slice == index), key=lambda p: p.name)
    wanted = shape(request.layout, candidate.option, candidate.zone, index)
    if not pools:
        return _without_pool(request, cloud, candidate, index, wanted, taken)
    pool = next((p for p in pools if p.shape == wanted and p.state is not PoolState.STOPPING), pools[0])
    surplus = tuple(DeletePool(p.name, uid) for p in pools if p is not pool and p.state is not PoolState.STOPPING)
    status = NodePoolStatus(slice=index, name=pool.name, operation=_operation_name(request, cloud, index, pool.name))
    if pool.state is PoolState.STOPPING:
        return SliceState(status, actions=surplus, message=f"pool {pool.name} is being deleted")
    if pool.shape != wanted:
        return SliceState(
            status, actions=(*surplus, DeletePool(pool.name, uid)), message=f"pool {pool.name} has a wrong shape"
        )
    if pool.state is PoolState.RUNNING:
        return SliceState(status, is_ready=True, actions=surplus)
    failure = _pool_failure(request, cloud, candidate, pool, status.operation)
    return SliceState(status, actions=surplus, message=f"pool {pool.name} is {pool.state}", failure=failure)


def _without_pool(
    request: CapacityRequest, cloud: Cloud, candidate: Candidate, index: int, wanted: str, taken: frozenset[str]
) -> SliceState:
    """Return the state of a slice without a pool: one is coming, failed to come, or is to be created."""
    name = _free_name(request, cloud, index)
    known = next((each for each in request.capacity.node_pools if each.slice == index), None)
    operation = cloud.operation(known.operation) if known and known.operation else None
    if operation is not None and not operation.is_done:
        return SliceState(known, message=f"pool {known.name if known else name} is being created")
    if known is not None and operation is not None and (failed := _missing_pool_failure(cloud, known, operation)):
        return SliceState(known, failure=failed)
    if cloud.is_being_deleted(name):
        return SliceState(known, message=f"pool {name} is being deleted")
    if cloud.busy:
        return SliceState(message=f"the cluster is busy: {cloud.busy}")
    idle = _idle_pool(request, cloud, wanted, taken)
    action: CloudAction
    if idle is not None:
        action = ClaimPool(idle.name, idle.etag, owner_labels(request.layout, candidate.option, candidate.zone, index))
    else:
        action = CreatePool(node_pool(request.layout, candidate.option, candidate.zone, index, name))
    answer = cloud.answer(action.pool)
    if answer is None:
        return SliceState(actions=(action,), message=f"pool {action.pool} is requested")
    if answer.failure is None:
        status = NodePoolStatus(slice=index, name=action.pool, operation=answer.operation)
        return SliceState(status, message=f"pool {action.pool} is being created")
    is_over = answer.failure.is_definite and not may_be_permission_delay(request, candidate, answer.failure)
    if is_over and isinstance(action, CreatePool):
        return SliceState(failure=answer.failure)
    return SliceState(message=f"pool {action.pool}: {answer.failure.code}: {answer.failure.message}")


def _free_name(request: CapacityRequest, cloud: Cloud, index: int) -> str:
    """Return the slice's name for a pool, or the next one while another job holds the pool of that name."""
    layout = request.layout
    taken = {pool.name for pool in cloud.pools if pool.job_uid != layout.uid}
    fitting = (names.node_pool(layout.name, layout.uid, number) for number in itertools.count(index, layout.pool_count))
    return next(name for name in fitting if name not in taken)


def _idle_pool(request: CapacityRequest, cloud: Cloud, wanted: str, taken: frozenset[str]) -> Pool | None:
    """Return an idle pool of this shape, of this namespace or of any if pools are shared."""
    settings, now = request.layout.settings, request.now.timestamp()
    fitting = (
        pool
        for pool in sorted(cloud.pools, key=lambda p: p.name)
        if not pool.job_uid
        and pool.shape == wanted
        and pool.state is PoolState.RUNNING
        and pool.name not in taken
        and now < pool.idle_since + settings.pool_idle_seconds - _LAST_MINUTE_S
        and (settings.share_pools or pool.namespace == request.layout.namespace)
    )
    return next(fitting, None)


def _pool_failure(
    request: CapacityRequest, cloud: Cloud, candidate: Candidate, pool: Pool, operation_name: str
) -> CloudFailure | None:
    """Return the failure of a pool that will not run; None if it is only slow.

    Google queues flex-start, so no stockout ends it. A pool that runs with errors gets less time than one that is
    coming, because it costs money.
    """
    operation = cloud.operation(operation_name)
    failures = (*pool.failures, *(operation.failures if operation and operation.is_done else ()))
    if is_flex(candidate.option) and pool.state is not PoolState.ERROR:
        failures = tuple(each for each in failures if each.kind is not FailureClass.STOCKOUT)
    failure = _definite(failures)
    attempt = open_attempt(request.capacity)
    age = timestamps.seconds_since(attempt.started, request.now) if attempt else None
    if failure is None and pool.state is PoolState.RUNNING_WITH_ERROR and age is not None and age >= USUAL_WAIT_S:
        return CloudFailure(FailureClass.UNKNOWN, str(pool.state), f"node pool {pool.name} has errors that persist")
    if failure is None and pool.state is PoolState.ERROR:
        return CloudFailure(FailureClass.UNKNOWN, "ERROR", f"node pool {pool.name} is in ERROR without a reason")
    return failure


def _definite(failures: tuple[CloudFailure, ...]) -> CloudFailure | None:
    """Return the final failure that explains most: `Unknown` comes last."""
    definite = [each for each in failures if each.is_definite]
    explained = [each for each in definite if each.kind is not FailureClass.UNKNOWN] or definite
    return explained[0] if explained else None


def _operation_name(request: CapacityRequest, cloud: Cloud, index: int, pool: str) -> str:
    """Return the operation that creates the pool: from status, or, if a crash lost it, from GKE's list."""
    known = next((each for each in request.capacity.node_pools if (each.slice, each.name) == (index, pool)), None)
    if known and known.operation:
        return known.operation
    running = (each.name for each in cloud.operations if each.pool == pool and not each.is_deletion)
    return next(running, "")


def _missing_pool_failure(cloud: Cloud, known: NodePoolStatus, operation: Operation) -> CloudFailure | None:
    """Return the failure if the operation is done and its pool is not there."""
    failed = _definite(operation.failures)
    is_deleted = any(each.pool == known.name and each.is_deletion for each in cloud.operations)
    if failed is not None or is_deleted:
        return failed
    if known.name in cloud.names:
        message = f"node pool {known.name} exists, but its labels were changed; hint: delete that node pool"
        return CloudFailure(FailureClass.UNKNOWN, "NODE_POOL_CHANGED", message)
    return CloudFailure(
        FailureClass.UNKNOWN, "NODE_POOL_GONE", f"node pool {known.name} was created and then disappeared"
    )


def may_be_permission_delay(request: CapacityRequest, candidate: Candidate, refusal: CloudFailure) -> bool:
    """Return True if a missing permission may just have been granted, and no other candidate is left."""
    attempt = open_attempt(request.capacity)
    age = timestamps.seconds_since(attempt.granted or attempt.started, request.now) if attempt else None
    is_young = age is not None and age < _POLLS_FOR_RIGHTS * request.layout.settings.cloud_poll_seconds
    is_right = refusal.kind is FailureClass.CONFIG_ERROR and refusal.code in ("PERMISSION_DENIED", "UNAUTHENTICATED")
    return is_young and is_right and not has_next(request, candidate)
