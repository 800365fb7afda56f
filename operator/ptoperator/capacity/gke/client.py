"""The node pools of a cluster on GKE: what is known of them, and one change after the other. Used by all threads.

One snapshot (cluster, operations, pools) serves all jobs for half a poll, so the number of calls does not grow with the
number of jobs. No call waits for an operation. Changes run one after the other, each checked against the pool as it is
now; after any failed create the pool is read, because it usually exists. After rate limiting or timeouts, the client
backs off. See docs/decisions/0006.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from google.api_core import exceptions
from google.cloud import container_v1 as container

from ptapi.failures import FailureClass
from ptoperator.capacity.cloud import (
    Answer,
    ClaimPool,
    Cloud,
    CloudAction,
    CreatePool,
    CreateShared,
    DeletePool,
    Operation,
    ReleasePool,
    Reservation,
)
from ptoperator.capacity.cloud_errors import CloudFailure
from ptoperator.capacity.gke.convert import (
    belongs_to,
    error_code,
    is_ours,
    operation_of,
    pool_of,
    refusal_of,
    retry_delay_s,
)
from ptoperator.capacity.gke.node_pool_api import NodePoolApi
from ptoperator.capacity.gke.rate_limit import RateLimitBackoff
from ptoperator.kube import labels
from ptoperator.settings import Settings

logger = logging.getLogger(__name__)

_THROTTLED = frozenset({"RESOURCE_EXHAUSTED", "UNAVAILABLE", "DEADLINE_EXCEEDED"})
"""Refusals of a GKE that is asked too much, or does not answer."""
_SLOW = CloudFailure(None, "DEADLINE_EXCEEDED", "GKE is slow to respond")
_LOCK_TIMEOUT_S = 5.0
"""Other jobs do not wait for a snapshot that takes longer than this: running ones need the threads."""


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
        self._api = NodePoolApi(settings, client)
        self._seconds = seconds
        self._reservations = reservations
        self._changing = threading.Lock()
        self._reading = threading.Lock()
        self._reading_since: float | None = None
        self._reads = RateLimitBackoff(settings.cloud_poll_seconds, seconds)
        self._changes = RateLimitBackoff(settings.cloud_poll_seconds, seconds)
        self._last: tuple[float, Cloud] | None = None
        self._changed: set[str] = set()
        self._zones: tuple[str, ...] = ()
        self._latest_refusal: CloudFailure | None = None
        self._blocking: frozenset[str] = frozenset()

    def snapshot(self, uid: str = "") -> Cloud:
        """Return a snapshot, at most half a poll old and never older than the last change to this job's pools.

        Another job's pool may have changed meanwhile. That is safe: a pool is taken over by its etag, and deleted after
        a GET.
        """
        since = self._reading_since
        waited_s = self._seconds() - since if since is not None else 0.0
        if not self._reading.acquire(timeout=max(0.0, _LOCK_TIMEOUT_S - waited_s)):
            return Cloud(failure=_SLOW)
        try:
            return self._cached(uid) or self._refresh()
        finally:
            self._reading.release()

    def _cached(self, uid: str) -> Cloud | None:
        """Return a snapshot if none may or need be fetched now."""
        is_changed = uid in self._changed if uid else bool(self._changed)
        age = self._seconds() - self._last[0] if self._last else None
        if self._last and age is not None and age < self._settings.cloud_poll_seconds / 2 and not is_changed:
            return self._last[1]
        pausing = self._reads.pausing
        return Cloud(failure=pausing) if pausing else None

    def _refresh(self) -> Cloud:
        self._changed = set()  # before asking: what changes while it is asked is asked again
        self._reading_since = self._seconds()
        try:
            cloud = self._fetch()
        finally:
            self._reading_since = None
        self._last = (self._seconds(), cloud)
        return cloud

    def last(self) -> Cloud | None:
        """Return the latest snapshot without a call; None before the first one, and just after a rejected change."""
        last = self._last
        return last[1] if last else None

    def reservation(self, name: str, zone: str) -> Reservation | None:
        """Return a reservation, or None if it cannot be read."""
        return self._reservations(name, zone)

    def carry_out(self, action: CloudAction) -> Answer:
        """Start one change. GKE's error is part of the result; this does not raise for it."""
        with self._changing:
            if pausing := self._changes.pausing:
                return Answer(action.pool, failure=pausing)
            try:
                answer = self._change(action)
                self._changes.served()
            except exceptions.GoogleAPICallError as error:
                answer = Answer(action.pool, failure=self._refused(error))
            self._changed = {*self._changed, _job_of(action)}
            if answer.failure is not None:  # GKE may refuse every change now
                self._last = None
        failure = answer.failure
        logger.info(
            "%s %s: %s", type(action).__name__, action.pool,
            f"{failure.code}: {failure.message}" if failure else answer.operation or "nothing to do",
        )  # fmt: skip
        return answer

    def _change(self, action: CloudAction) -> Answer:
        match action:
            case CreatePool():
                return self._create(action)
            case CreateShared():
                return self._create_shared(action)
            case ClaimPool():
                return self._claim(action)
            case ReleasePool():
                return self._release(action)
            case DeletePool():
                return self._delete(action.pool, action.job_uid)

    def _fetch(self) -> Cloud:
        try:
            if not self._zones:
                self._zones = self._api.zones()
            # operations first: a pool whose operation is done is then surely in the later list, or gone
            listed, node_pools = self._api.operations(), self._api.node_pools()
        except exceptions.GoogleAPICallError as error:
            failure = refusal_of(error)
            if _is_throttled(error, failure):
                self._reads.refused(failure, retry_delay_s(error))
            logger.warning("GKE cannot be queried: %s: %s", failure.code, failure.message)
            return Cloud(failure=failure)
        self._reads.served()
        cluster = self._settings.gke_cluster
        operations = tuple(filter(None, (operation_of(each, cluster) for each in listed)))
        ours = tuple(pool_of(each) for each in node_pools if is_ours(each))
        names = frozenset(each.name for each in node_pools)
        return Cloud(self._zones, ours, operations, busy=self._why_busy(operations), names=names)

    def _create(self, action: CreatePool) -> Answer:
        try:
            return Answer(action.pool, self._api.create(action.manifest))
        except exceptions.GoogleAPICallError as error:
            node_pool = self._api.node_pool(action.pool)
            if node_pool is None:
                raise
            return self._adopt(action, node_pool, error)

    def _create_shared(self, action: CreateShared) -> Answer:
        try:
            return Answer(action.pool, self._api.create(action.manifest))
        except exceptions.AlreadyExists:
            return Answer(action.pool)

    def _adopt(self, action: CreatePool, node_pool: Any, error: exceptions.GoogleAPICallError) -> Answer:
        """Decide whose pool it is that exists although the create failed."""
        wanted, there = action.manifest["config"]["resource_labels"], dict(node_pool.config.resource_labels)
        if not is_ours(node_pool) or there.get(labels.POOL_JOB_UID) != wanted[labels.POOL_JOB_UID]:
            message = f"node pool {action.pool} exists and belongs to another owner; hint: delete that node pool"
            return Answer(action.pool, failure=CloudFailure(FailureClass.CONFIG_ERROR, "ALREADY_EXISTS", message))
        if any(there.get(key) != wanted[key] for key in (labels.POOL_SHAPE, labels.POOL_SLICE)):
            return Answer(action.pool, failure=CloudFailure(None, "ALREADY_EXISTS", "the previous pool still exists"))
        logger.info("CreatePool %s: adopted, although the call returned %s", action.pool, error_code(error))
        return Answer(action.pool)

    def _claim(self, action: ClaimPool) -> Answer:
        """Relabel the pool with its etag, so that of several jobs one wins."""
        return Answer(action.pool, self._api.label(action.pool, action.etag, action.labels))

    def _release(self, action: ReleasePool) -> Answer:
        node_pool = self._api.node_pool(action.pool)
        if node_pool is None or not belongs_to(node_pool, action.job_uid):
            return Answer(action.pool)
        kept = {
            k: v for k, v in node_pool.config.resource_labels.items() if k not in (labels.POOL_JOB_UID, labels.POOL_JOB)
        }
        try:
            idle = {**kept, labels.POOL_IDLE_SINCE: str(action.idle_since)}
            return Answer(action.pool, self._api.label(action.pool, node_pool.etag, idle))
        except exceptions.GoogleAPICallError as error:
            if self._refused(error).is_definite:
                return self._delete(action.pool, action.job_uid)
            raise

    def _delete(self, pool: str, job_uid: str) -> Answer:
        node_pool = self._api.node_pool(pool)
        is_going = node_pool is None or node_pool.status == container.NodePool.Status.STOPPING
        if is_going or not is_ours(node_pool) or not belongs_to(node_pool, job_uid):
            return Answer(pool)
        try:
            return Answer(pool, self._api.delete(pool))
        except exceptions.NotFound:
            return Answer(pool)

    def _refused(self, error: exceptions.GoogleAPICallError) -> CloudFailure:
        """Classify a rejection. One caused by other operations blocks changes until those are done."""
        failure = refusal_of(error)
        if _is_throttled(error, failure):
            self._changes.refused(failure, retry_delay_s(error))
        if failure.kind is None and "incompatible operation" in failure.message.lower():
            self._latest_refusal = failure
        return failure

    def _why_busy(self, operations: tuple[Operation, ...]) -> str:
        """Return a running operation that blocked a change, or the rejection that the client backs off from."""
        running = frozenset(each.name for each in operations if not each.is_done)
        if self._latest_refusal and not running:  # GKE does not list what stands in the way
            self._changes.refused(self._latest_refusal)
        self._blocking = running if self._latest_refusal else self._blocking & running
        self._latest_refusal = None
        if pausing := self._changes.pausing:
            return f"{pausing.code}: {pausing.message}"
        return next(iter(sorted(self._blocking)), "")


def _job_of(action: CloudAction) -> str:
    """Return the uid of the job whose pool changes; empty for a shared pool."""
    match action:
        case CreatePool(manifest):
            return str(manifest["config"]["resource_labels"][labels.POOL_JOB_UID])
        case ClaimPool():
            return str(action.labels[labels.POOL_JOB_UID])
        case ReleasePool() | DeletePool():
            return action.job_uid
        case CreateShared():
            return ""


def _is_throttled(error: exceptions.GoogleAPICallError, failure: CloudFailure) -> bool:
    """Return True if the error is about the call rate, not about the request."""
    return failure.kind is None and error_code(error) in _THROTTLED
