"""The cloud's state at one moment, and the changes that the operator may ask for.

`gke` builds and carries out these values; the deciding code sees nothing else. One snapshot serves all jobs. Left out:
what GKE knows of clusters and nodes; pods show their nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from ptkube.resources import Manifest
from ptoperator.capacity.cloud_errors import CloudFailure


class PoolState(StrEnum):
    """A node pool's status, as GKE names it."""

    PROVISIONING = "PROVISIONING"
    RUNNING = "RUNNING"
    RUNNING_WITH_ERROR = "RUNNING_WITH_ERROR"
    RECONCILING = "RECONCILING"
    STOPPING = "STOPPING"
    ERROR = "ERROR"
    UNKNOWN = "STATUS_UNSPECIFIED"


@dataclass(frozen=True)
class Pool:
    """A node pool that this operator created.

    job_uid: empty while it waits for its next job, since `idle_since` (Unix time). is_flex: flex-start created it, so
    its time runs out.
    """

    name: str
    state: PoolState
    shape: str
    namespace: str
    job_uid: str = ""
    slice: int = 0
    idle_since: int = 0
    etag: str = ""
    failures: tuple[CloudFailure, ...] = ()
    is_flex: bool = False


@dataclass(frozen=True)
class Operation:
    """A GKE operation on a node pool, or on the cluster itself (pool: empty). is_deletion: it deletes the pool."""

    name: str
    pool: str
    is_done: bool
    is_deletion: bool = False
    failures: tuple[CloudFailure, ...] = ()


@dataclass(frozen=True)
class Reservation:
    """A reservation of VMs: how many it has, and how many are in use by anyone."""

    name: str
    zone: str
    hosts: int
    in_use: int

    @property
    def free(self) -> int:
        """Return the VMs that nobody uses."""
        return max(0, self.hosts - self.in_use)


@dataclass(frozen=True)
class CreatePool:
    """Create a node pool, or adopt the one of its name and shape."""

    manifest: Manifest

    @property
    def pool(self) -> str:
        """Return the pool's name."""
        return str(self.manifest["name"])


@dataclass(frozen=True)
class CreateShared:
    """Create a node pool that all jobs share, or use the one of its name, whoever created it."""

    manifest: Manifest

    @property
    def pool(self) -> str:
        """Return the pool's name."""
        return str(self.manifest["name"])


@dataclass(frozen=True)
class ClaimPool:
    """Take over an idle pool, if it is unchanged since it was read with this etag."""

    pool: str
    etag: str
    labels: Manifest


@dataclass(frozen=True)
class ReleasePool:
    """Release a pool that this job holds; delete it if it cannot be labelled."""

    pool: str
    job_uid: str
    idle_since: int


@dataclass(frozen=True)
class DeletePool:
    """Delete a pool while this job holds it (empty: while no job does)."""

    pool: str
    job_uid: str


CloudAction = CreatePool | CreateShared | ClaimPool | ReleasePool | DeletePool


@dataclass(frozen=True)
class Answer:
    """The result of an action: the started operation, or the failure; neither if there was nothing to do."""

    pool: str
    operation: str = ""
    failure: CloudFailure | None = None


@dataclass(frozen=True)
class Cloud:
    """A snapshot. failure: GKE did not answer, and the rest means nothing. busy: GKE accepts no change now.

    answers: results of actions since the snapshot. reservation: the one that the job is about to use, if the cloud
    reports it. names: all pools of the cluster, whoever created them.
    """

    zones: tuple[str, ...] = ()
    pools: tuple[Pool, ...] = ()
    operations: tuple[Operation, ...] = ()
    failure: CloudFailure | None = None
    busy: str = ""
    answers: tuple[Answer, ...] = ()
    reservation: Reservation | None = None
    names: frozenset[str] = frozenset()

    def of_job(self, uid: str) -> tuple[Pool, ...]:
        """Return the pools that a job holds."""
        return tuple(pool for pool in self.pools if pool.job_uid == uid)

    def changeable(self, uid: str) -> tuple[Pool, ...]:
        """Return a job's pools that can be released now.

        Not while GKE is busy, and not pools that are being deleted or were acted on since the snapshot.
        """
        pools = (pool for pool in self.of_job(uid) if pool.state is not PoolState.STOPPING)
        return tuple(pool for pool in pools if not self.busy and self.answer(pool.name) is None)

    def answer(self, pool: str) -> Answer | None:
        """Return the result of the action on a pool, or None."""
        return next((answer for answer in self.answers if answer.pool == pool), None)

    def operation(self, name: str) -> Operation | None:
        """Return an operation by its name, or None."""
        return next((operation for operation in self.operations if operation.name == name), None)

    def is_being_deleted(self, pool: str) -> bool:
        """Return True if a deletion of the pool is running."""
        return any(each.pool == pool and each.is_deletion and not each.is_done for each in self.operations)

    def after(self, answers: list[Answer]) -> Cloud:
        """Return the snapshot with more results of actions."""
        return replace(self, answers=(*self.answers, *answers))


class CloudProvider(Protocol):
    """What the operator needs of a cloud. No method raises for the cloud's errors; `CloudFailure` carries them."""

    def snapshot(self, uid: str = "", /) -> Cloud:
        """Return a snapshot that is fresh enough for this job."""

    def last(self) -> Cloud | None:
        """Return the latest snapshot without a call, or None."""

    def reservation(self, name: str, zone: str, /) -> Reservation | None:
        """Return a reservation, or None if it cannot be read."""

    def carry_out(self, action: CloudAction, /) -> Answer:
        """Start one change and return its result."""
