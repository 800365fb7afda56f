"""GKE's API: the only module that talks to a cloud. google-cloud-container's client, called from reconcile's threads.

One look (cluster, operations, pools) serves all jobs for half a poll, so the number of calls does not grow with the
number of jobs. No call waits for an operation. Changes go one after the other, each checked against the pool as it is
now; after any failed create the pool is asked for, because it usually exists. See docs/decisions/0006.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import grpc
from google.api_core import exceptions
from google.cloud import container_v1 as container
from google.cloud.container_v1.services.cluster_manager import transports

from ptapi.failures import FailureClass
from ptoperator import labels
from ptoperator.capacity import trouble
from ptoperator.capacity.cloud import (
    Answer,
    ClaimPool,
    Cloud,
    CloudAction,
    CreatePool,
    DeletePool,
    Operation,
    Pool,
    PoolState,
    ReleasePool,
    Reservation,
)
from ptoperator.capacity.trouble import Trouble
from ptoperator.settings import Settings

logger = logging.getLogger(__name__)

T = TypeVar("T")
_DELETE = container.Operation.Type.DELETE_NODE_POOL
_DONE = container.Operation.Status.DONE


class Gke:
    """The node pools of one cluster. Safe to share between threads."""

    def __init__(
        self,
        settings: Settings,
        client: Any = None,
        seconds: Callable[[], float] = time.monotonic,
        reservations: Callable[[str, str], Reservation | None] = lambda name, zone: None,
    ) -> None:
        self._settings = settings
        self._region = f"projects/{settings.gke_project}/locations/{settings.gke_location}"
        self._cluster = f"{self._region}/clusters/{settings.gke_cluster}"
        self._client = client or connect(settings.gke_endpoint)
        self._seconds = seconds
        self._reservations = reservations
        self._changing = threading.Lock()
        self._looking = threading.Lock()
        self._last: tuple[float, Cloud] | None = None
        self._changed: set[str] = set()
        self._zones: tuple[str, ...] = ()
        self._was_refused = False
        self._refused_by: frozenset[str] = frozenset()

    def look(self, uid: str = "") -> Cloud:
        """What is there now, or was half a poll ago if nothing was changed since: for this job, where one is named.

        Another job's pool may have come or gone meanwhile. Nothing is decided by that which is not asked again: a pool
        is taken over by its etag, and deleted after a GET.
        """
        with self._looking:
            is_changed = uid in self._changed if uid else bool(self._changed)
            age = self._seconds() - self._last[0] if self._last else None
            if self._last and age is not None and age < self._settings.cloud_poll_seconds / 2 and not is_changed:
                return self._last[1]
            self._changed = set()  # before asking: what changes while it is asked is asked again
            found = self._ask()
            self._last = (self._seconds(), found)
            return found

    def last(self) -> Cloud | None:
        """What was there at the last look, without asking; None before the first, and just after a change."""
        last = self._last
        return last[1] if last else None

    def reservation(self, name: str, zone: str) -> Reservation | None:
        """What is left of a reservation, where Google tells."""
        return self._reservations(name, zone)

    def carry_out(self, action: CloudAction) -> Answer:
        """Start one change. What GKE says about it is the answer; it never raises for that."""
        with self._changing:
            try:
                match action:
                    case CreatePool():
                        answer = self._create(action)
                    case ClaimPool():
                        answer = self._claim(action)
                    case ReleasePool():
                        answer = self._release(action)
                    case DeletePool():
                        answer = self._delete(action.pool, action.job_uid)
            except exceptions.GoogleAPICallError as error:
                answer = Answer(action.pool, trouble=self._refused(error))
            self._changed = {*self._changed, _job_of(action)}
            if answer.trouble is not None:  # GKE may refuse every change now
                self._last = None
        said = answer.trouble
        logger.info(
            "%s %s: %s", type(action).__name__, action.pool,
            f"{said.code}: {said.message}" if said else answer.operation or "nothing to do",
        )  # fmt: skip
        return answer

    def _ask(self) -> Cloud:
        try:
            if not self._zones:
                cluster = self._call(self._client.get_cluster, container.GetClusterRequest(name=self._cluster))
                self._zones = tuple(cluster.locations)
            # operations first: a pool whose operation is done is then surely in the later list, or gone
            listed = self._call(self._client.list_operations, container.ListOperationsRequest(parent=self._region))
            pools = self._call(self._client.list_node_pools, container.ListNodePoolsRequest(parent=self._cluster))
        except exceptions.GoogleAPICallError as error:
            found = trouble.of_call(_code(error), error.message or str(error))
            logger.warning("GKE cannot be asked: %s: %s", found.code, found.message)
            return Cloud(trouble=found)
        operations = tuple(filter(None, (self._operation(each) for each in listed.operations)))
        ours = tuple(_pool(each) for each in pools.node_pools if _is_ours(each))
        return Cloud(self._zones, ours, operations, busy=self._why_busy(operations))

    def _create(self, action: CreatePool) -> Answer:
        request = container.CreateNodePoolRequest(parent=self._cluster, node_pool=action.manifest)
        try:
            started = self._call(self._client.create_node_pool, request)
        except exceptions.GoogleAPICallError as error:
            found = self._get(action.pool)
            if found is None:
                raise
            return self._adopted(action, found, error)
        return Answer(action.pool, started.name)

    def _adopted(self, action: CreatePool, found: Any, error: exceptions.GoogleAPICallError) -> Answer:
        """The pool is there although the call failed: it is the one that was asked for, an older one, or not ours."""
        wanted, there = action.manifest["config"]["resource_labels"], dict(found.config.resource_labels)
        if not _is_ours(found) or there.get(labels.POOL_JOB_UID) != wanted[labels.POOL_JOB_UID]:
            words = f"node pool {action.pool} exists and is not this job's; hint: delete that node pool"
            return Answer(action.pool, trouble=Trouble(FailureClass.CONFIG_ERROR, "ALREADY_EXISTS", words))
        if any(there.get(key) != wanted[key] for key in (labels.POOL_SHAPE, labels.POOL_SLICE)):
            return Answer(action.pool, trouble=Trouble(None, "ALREADY_EXISTS", "a pool of before is still there"))
        logger.info("CreatePool %s: adopted, although the call said %s", action.pool, _code(error))
        return Answer(action.pool)

    def _claim(self, action: ClaimPool) -> Answer:
        """The etag makes it a race that one job wins."""
        return Answer(action.pool, self._label(action.pool, action.etag, action.labels).name)

    def _release(self, action: ReleasePool) -> Answer:
        found = self._get(action.pool)
        if found is None or not _is_held_by(found, action.job_uid):
            return Answer(action.pool)
        kept = {
            k: v for k, v in found.config.resource_labels.items() if k not in (labels.POOL_JOB_UID, labels.POOL_JOB)
        }
        try:
            started = self._label(action.pool, found.etag, {**kept, labels.POOL_IDLE_SINCE: str(action.idle_since)})
        except exceptions.GoogleAPICallError as error:
            if self._refused(error).is_definite:
                return self._delete(action.pool, action.job_uid)
            raise
        return Answer(action.pool, started.name)

    def _delete(self, pool: str, job_uid: str) -> Answer:
        found = self._get(pool)
        is_going = found is None or found.status == container.NodePool.Status.STOPPING
        if is_going or not _is_ours(found) or not _is_held_by(found, job_uid):
            return Answer(pool)
        request = container.DeleteNodePoolRequest(name=self._path(pool))
        try:
            return Answer(pool, self._call(self._client.delete_node_pool, request).name)
        except exceptions.NotFound:
            return Answer(pool)

    def _label(self, pool: str, etag: str, wanted: dict[str, str]) -> Any:
        request = container.UpdateNodePoolRequest(
            name=self._path(pool), etag=etag, resource_labels=container.ResourceLabels(labels=wanted)
        )
        return self._call(self._client.update_node_pool, request)

    def _get(self, pool: str) -> Any:
        request = container.GetNodePoolRequest(name=self._path(pool))
        try:
            return self._call(self._client.get_node_pool, request)
        except exceptions.NotFound:
            return None

    def _call(self, method: Callable[..., T], request: Any) -> T:
        """No retries of the library's: the work queue repeats, with its own pauses."""
        try:
            return method(request=request, retry=None, timeout=self._settings.cloud_timeout_seconds)
        except exceptions.RetryError as error:
            raise exceptions.DeadlineExceeded(str(error)) from error

    def _refused(self, error: exceptions.GoogleAPICallError) -> Trouble:
        """What a refusal means. One because of other operations holds changes back until those are over."""
        found = trouble.of_call(_code(error), error.message or str(error))
        if found.kind is None and "incompatible operation" in found.message.lower():
            self._was_refused = True
        return found

    def _why_busy(self, operations: tuple[Operation, ...]) -> str:
        """Of the operations that stood in the way of a change, one that still runs."""
        running = frozenset(each.name for each in operations if not each.is_done)
        self._refused_by = running if self._was_refused else self._refused_by & running
        self._was_refused = False
        return next(iter(sorted(self._refused_by)), "")

    def _operation(self, operation: Any) -> Operation | None:
        """Of our cluster's node pools only."""
        marker = f"/clusters/{self._settings.gke_cluster}/nodePools/"
        if marker not in operation.target_link:
            return None
        said = [trouble.of_outcome(_status_code(each), each.message) for each in operation.nodepool_conditions]
        if operation.error.code:
            said.append(trouble.of_outcome(_grpc_name(operation.error.code), operation.error.message))
        return Operation(
            name=operation.name,
            pool=operation.target_link.rpartition("/")[2],
            is_done=operation.status == _DONE,
            is_deletion=operation.operation_type == _DELETE,
            troubles=tuple(said),
        )

    def _path(self, pool: str) -> str:
        return f"{self._cluster}/nodePools/{pool}"


def _job_of(action: CloudAction) -> str:
    """Uid of the job whose pool is changed."""
    match action:
        case CreatePool(manifest):
            return str(manifest["config"]["resource_labels"][labels.POOL_JOB_UID])
        case ClaimPool():
            return str(action.labels[labels.POOL_JOB_UID])
        case ReleasePool() | DeletePool():
            return action.job_uid


def connect(endpoint: str) -> Any:
    """A client with Application Default Credentials. Only `http://…`, a server of tests, gets none."""
    scheme, _, address = endpoint.rpartition("://")
    if scheme == "http":
        transport = transports.ClusterManagerGrpcTransport(channel=grpc.insecure_channel(address))
        return container.ClusterManagerClient(transport=transport)
    return container.ClusterManagerClient(client_options={"api_endpoint": address} if address else None)


def _pool(found: Any) -> Pool:
    marks = dict(found.config.resource_labels)
    state = PoolState(found.status.name) if found.status.name in set(PoolState) else PoolState.UNKNOWN
    said = [trouble.of_condition(_status_code(each), each.message) for each in found.conditions]
    if state is PoolState.ERROR and (found.status_message or not any(said)):
        said.append(trouble.of_outcome("ERROR", found.status_message))
    return Pool(
        name=found.name,
        state=state,
        shape=marks.get(labels.POOL_SHAPE, ""),
        namespace=marks.get(labels.POOL_NAMESPACE, ""),
        job_uid=marks.get(labels.POOL_JOB_UID, ""),
        slice=_number(marks.get(labels.POOL_SLICE)),
        idle_since=_number(marks.get(labels.POOL_IDLE_SINCE)),
        etag=found.etag,
        troubles=tuple(filter(None, said)),
    )


def _is_ours(found: Any) -> bool:
    return bool(found.config.resource_labels.get(labels.POOL_MANAGER) == labels.MANAGER)


def _is_held_by(found: Any, job_uid: str) -> bool:
    return bool(found.config.resource_labels.get(labels.POOL_JOB_UID, "") == job_uid)


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def _status_code(condition: Any) -> str:
    """`GCE_STOCKOUT`, or the general code where GKE has no word of its own."""
    if condition.code:
        return str(condition.code.name)
    return _grpc_name(condition.canonical_code)


def _grpc_name(code: Any) -> str:
    number = int(code)
    return next((each.name for each in grpc.StatusCode if each.value[0] == number), "UNKNOWN")


def _code(error: exceptions.GoogleAPICallError) -> str:
    return str(error.grpc_status_code.name) if error.grpc_status_code else "UNKNOWN"
