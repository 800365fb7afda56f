"""What is known of the cloud at one moment, and what may be done to it, as values of our own.

`gke` makes and carries out these values; everything that decides sees nothing else. One look serves all jobs. Left
out: what GKE knows of clusters and nodes; nodes are seen through pods.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from ptkube.resources import Manifest
from ptoperator.capacity.cloud_errors import Trouble


class PoolState(StrEnum):
    """A node pool's status, in GKE's words."""

    PROVISIONING = "PROVISIONING"
    RUNNING = "RUNNING"
    RUNNING_WITH_ERROR = "RUNNING_WITH_ERROR"
    RECONCILING = "RECONCILING"
    STOPPING = "STOPPING"
    ERROR = "ERROR"
    UNKNOWN = "STATUS_UNSPECIFIED"


@dataclass(frozen=True)
class Pool:
    """A node pool of ours. job_uid: empty while it waits for its next job, from `idle_since` (Unix time) on. is_flex:
    flex-start made it, so its time runs out."""

    name: str
    state: PoolState
    shape: str
    namespace: str
    job_uid: str = ""
    slice: int = 0
    idle_since: int = 0
    etag: str = ""
    troubles: tuple[Trouble, ...] = ()
    is_flex: bool = False


@dataclass(frozen=True)
class Operation:
    """A GKE operation on a node pool, or on the cluster itself (pool: empty). is_deletion: it deletes the pool."""

    name: str
    pool: str
    is_done: bool
    is_deletion: bool = False
    troubles: tuple[Trouble, ...] = ()


@dataclass(frozen=True)
class Reservation:
    """A reservation of VMs: how many, and how many are in use, by whomever."""

    name: str
    zone: str
    hosts: int
    in_use: int

    @property
    def free(self) -> int:
        return max(0, self.hosts - self.in_use)


@dataclass(frozen=True)
class CreatePool:
    """Make a node pool. If one of its name and shape is there already, that is it."""

    manifest: Manifest

    @property
    def pool(self) -> str:
        return str(self.manifest["name"])


@dataclass(frozen=True)
class CreateShared:
    """Make a node pool that all jobs share. One of its name that is there, whoever made it, is it."""

    manifest: Manifest

    @property
    def pool(self) -> str:
        return str(self.manifest["name"])


@dataclass(frozen=True)
class ClaimPool:
    """Take over a pool that waits, if nobody was faster since it was seen with this etag."""

    pool: str
    etag: str
    labels: Manifest


@dataclass(frozen=True)
class ReleasePool:
    """Let go of a pool that this job holds; where it cannot be labelled so, it is deleted."""

    pool: str
    job_uid: str
    idle_since: int


@dataclass(frozen=True)
class DeletePool:
    """Delete a pool of ours while this job holds it (empty: while nobody does)."""

    pool: str
    job_uid: str


CloudAction = CreatePool | CreateShared | ClaimPool | ReleasePool | DeletePool


@dataclass(frozen=True)
class Answer:
    """What became of an action: the operation that was started, or what is wrong. Neither: nothing was to do."""

    pool: str
    operation: str = ""
    trouble: Trouble | None = None


@dataclass(frozen=True)
class Cloud:
    """One look. trouble: GKE could not be asked, and nothing here means anything. busy: GKE accepts no change now.

    answers: what became of actions since this look. reservation: the one that the job is about to use, if the cloud
    tells of it. names: of all pools of the cluster, ours or not.
    """

    zones: tuple[str, ...] = ()
    pools: tuple[Pool, ...] = ()
    operations: tuple[Operation, ...] = ()
    trouble: Trouble | None = None
    busy: str = ""
    answers: tuple[Answer, ...] = ()
    reservation: Reservation | None = None
    names: frozenset[str] = frozenset()

    def of_job(self, uid: str) -> tuple[Pool, ...]:
        return tuple(pool for pool in self.pools if pool.job_uid == uid)

    def changeable(self, uid: str) -> tuple[Pool, ...]:
        """A job's pools that GKE may be asked to let go now: it is not busy, was not asked since this look, and they do
        not go already."""
        held = (pool for pool in self.of_job(uid) if pool.state is not PoolState.STOPPING)
        return tuple(pool for pool in held if not self.busy and self.answer(pool.name) is None)

    def answer(self, pool: str) -> Answer | None:
        return next((answer for answer in self.answers if answer.pool == pool), None)

    def operation(self, name: str) -> Operation | None:
        return next((operation for operation in self.operations if operation.name == name), None)

    def is_being_deleted(self, pool: str) -> bool:
        return any(each.pool == pool and each.is_deletion and not each.is_done for each in self.operations)

    def after(self, answers: list[Answer]) -> Cloud:
        return replace(self, answers=(*self.answers, *answers))


class CloudProvider(Protocol):
    """What the operator needs of a cloud. Nothing here raises for what the cloud says; `Trouble` carries it."""

    def look(self, uid: str = "", /) -> Cloud: ...
    def last(self) -> Cloud | None: ...
    def reservation(self, name: str, zone: str, /) -> Reservation | None: ...
    def carry_out(self, action: CloudAction, /) -> Answer: ...
