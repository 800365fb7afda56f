"""What GKE does with node pools, without a network: clusters, pools and operations that change as time passes.

The rules it keeps are those that the operator relies on: a name exists once; operations take time; a label change with
an old etag is refused; where `is_serial`, a second change during another is an "incompatible operation". `faults` says
what goes wrong with the pools to come. Time is a function, so that simulations may move it.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

PROVISIONING, RUNNING, RUNNING_WITH_ERROR = "PROVISIONING", "RUNNING", "RUNNING_WITH_ERROR"
RECONCILING, STOPPING, ERROR = "RECONCILING", "STOPPING", "ERROR"
ZONE_EXHAUSTED = (
    "[ZONE_RESOURCE_POOL_EXHAUSTED]: The zone 'projects/p/zones/{zone}' does not have enough resources available to "
    "fulfill the request."
)
QUOTA = (
    "Insufficient regional quota to satisfy request: resource \"TPU_V6E\": request requires '16.0' and is short '8.0'. "
    "project has a quota of '8.0' with '8.0' available. View and manage quotas at https://console.cloud.google.com"
)


IN_CHANNEL = {"release_channel": {"channel": "REGULAR"}}
"""As GKE makes clusters unless it is told otherwise; clusters without a channel come to an end."""


class Refusal(Exception):
    """A call is refused. code: gRPC's name."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass
class Fault:
    """What becomes of a create. refuse: (gRPC code, words) at once. outcome: words of an operation that fails, and
    `condition` the code of its condition; the pool stays in ERROR, or, with leaves_nothing, is not there. state: the
    pool comes to this state and stays in it. seconds: how long it takes. nodes: so many come, whatever was asked for.
    is_terse: the operation says it in its status message alone, as it did in GKE's first years."""

    refuse: tuple[str, str] | None = None
    outcome: str = ""
    condition: str = ""
    leaves_nothing: bool = False
    state: str = ""
    seconds: float | None = None
    nodes: int | None = None
    is_terse: bool = False


@dataclass
class PoolRecord:
    """A node pool. manifest: as it was asked for. until: when its present change is over."""

    manifest: dict[str, Any]
    state: str = PROVISIONING
    message: str = ""
    condition: str = ""
    etag: int = 1
    nodes: int = 0

    @property
    def name(self) -> str:
        return str(self.manifest["name"])

    @property
    def zone(self) -> str:
        return str((self.manifest.get("locations") or [""])[0])

    @property
    def labels(self) -> dict[str, str]:
        resource_labels: dict[str, str] = self.manifest["config"].setdefault("resource_labels", {})
        return resource_labels


@dataclass
class OperationRecord:
    """A change that takes until `due`, of a pool or (pool: empty) of the cluster."""

    name: str
    kind: str
    pool: str
    due: float
    finish: Callable[[], None]
    is_done: bool = False
    error: str = ""
    condition: str = ""
    is_terse: bool = False
    cluster: str = "c"
    is_listed: bool = True


@dataclass
class ClusterRecord:
    """A cluster. manifest: as it was asked for."""

    manifest: dict[str, Any]
    state: str = RUNNING
    message: str = ""
    nodes: int = 0
    endpoint: str = "203.0.113.7"
    certificate: str = ""

    @property
    def name(self) -> str:
        return str(self.manifest["name"])


@dataclass
class GkeModel:
    """One place for a cluster, which has one of the name `c` unless it is told otherwise.

    cluster_fault: what becomes of the next cluster. others: clusters that somebody else made, elsewhere.
    """

    clock: Callable[[], float]
    zones: tuple[str, ...] = ("us-east5-a", "us-east5-b")
    seconds: float = 60.0
    is_serial: bool = False
    fault_for: Callable[[PoolRecord], Fault | None] = lambda pool: None
    on_nodes: Callable[[PoolRecord], None] = lambda pool: None
    cluster: ClusterRecord | None = field(default_factory=lambda: ClusterRecord({"name": "c", **IN_CHANNEL}))
    cluster_fault: Fault | None = None
    clusters_made: list[str] = field(default_factory=list)
    pools: dict[str, PoolRecord] = field(default_factory=dict)
    operations: list[OperationRecord] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    def advance(self) -> None:
        """Finish what is due."""
        for operation in self.operations:
            if not operation.is_done and operation.due <= self.clock():
                operation.is_done = True
                operation.finish()

    def create_cluster(self, manifest: dict[str, Any], pools: list[dict[str, Any]]) -> OperationRecord:
        """pools: the node pools that come with it."""
        self.advance()
        if self.cluster is not None:
            raise Refusal("ALREADY_EXISTS", f"Already exists: clusters/{manifest['name']}.")
        fault, self.cluster_fault = self.cluster_fault or Fault(), None
        if fault.refuse:
            raise Refusal(*fault.refuse)
        cluster = self.cluster = ClusterRecord(manifest, PROVISIONING)
        self.clusters_made.append(cluster.name)
        self.pools = {pool["name"]: PoolRecord(pool) for pool in pools}
        seconds = self.seconds if fault.seconds is None else fault.seconds
        operation = self._start("CREATE_CLUSTER", "", seconds, lambda: self._cluster_created(cluster, fault, operation))
        return operation

    def delete_cluster(self, name: str) -> OperationRecord:
        self.advance()
        cluster = self.get_cluster(name)
        if cluster.state == STOPPING:
            raise Refusal("FAILED_PRECONDITION", f"Cluster {name} is being deleted: incompatible operation.")
        cluster.state = STOPPING

        def gone() -> None:
            if self.cluster is cluster:
                self.cluster, self.pools = None, {}

        return self._start("DELETE_CLUSTER", "", self.seconds / 2, gone)

    def get_cluster(self, name: str) -> ClusterRecord:
        self.advance()
        if self.cluster is None or self.cluster.name != name:
            raise Refusal("NOT_FOUND", f"Not found: clusters/{name}.")
        return self.cluster

    def forget_operations(self) -> None:
        """They go on, and are no longer listed."""
        for operation in self.operations:
            operation.is_listed = False

    def create(self, manifest: dict[str, Any]) -> OperationRecord:
        self.advance()
        if self.cluster is None or self.cluster.state == PROVISIONING:
            raise Refusal("FAILED_PRECONDITION", "the cluster is not there yet")
        self._refuse_second_change()
        pool = PoolRecord(manifest)
        self._refuse_without_upgrades(manifest)
        if pool.name in self.pools:
            raise Refusal("ALREADY_EXISTS", f"Already exists: nodePools/{pool.name}.")
        fault = self.fault_for(pool) or Fault()
        if fault.refuse:
            raise Refusal(*fault.refuse)
        self.pools[pool.name] = pool
        self.made.append(pool.name)
        self._note_doubles(pool)
        seconds = self.seconds if fault.seconds is None else fault.seconds
        operation = self._start("CREATE_NODE_POOL", pool.name, seconds, lambda: self._created(pool, fault, operation))
        return operation

    def label(self, name: str, etag: str, wanted: dict[str, str]) -> OperationRecord:
        self.advance()
        pool = self.get(name)
        if etag and etag != str(pool.etag):
            raise Refusal("ABORTED", f"etag {etag} is not the current one")
        self._refuse_second_change()
        pool.manifest["config"]["resource_labels"] = dict(wanted)
        pool.etag += 1
        self._note_doubles(pool)
        return self._start("UPDATE_CLUSTER", name, 0.0, lambda: None)

    def delete(self, name: str) -> OperationRecord:
        self.advance()
        pool = self.get(name)
        if pool.state == STOPPING:
            raise Refusal("FAILED_PRECONDITION", f"node pool {name} is being deleted")
        self._refuse_second_change()
        pool.state, pool.etag, pool.nodes = STOPPING, pool.etag + 1, 0
        self.on_nodes(pool)
        return self._start("DELETE_NODE_POOL", name, self.seconds / 2, lambda: self._deleted(pool))

    def get(self, name: str) -> PoolRecord:
        self.advance()
        if name not in self.pools:
            raise Refusal("NOT_FOUND", f"Not found: nodePools/{name}.")
        return self.pools[name]

    def lose_nodes(self, name: str, state: str = ERROR) -> None:
        """Its machines go away, as spot ones do."""
        self.resize(name, 0, state)

    def vanish(self, name: str) -> None:
        """Somebody deletes it by hand."""
        pool = self.pools.pop(name, None)
        if pool is not None:
            pool.nodes = 0
            self.on_nodes(pool)

    def upgrade(self, seconds: float) -> None:
        """The cluster itself is changed; whatever else is to be changed must wait."""
        self.is_serial = True
        self._start("UPGRADE_MASTER", "", seconds, lambda: None)

    def resize(self, name: str, nodes: int, state: str = RUNNING) -> None:
        """Nodes come late, or go."""
        pool = self.pools[name]
        pool.state, pool.nodes, pool.etag = state, nodes, pool.etag + 1
        self.on_nodes(pool)

    def listed(self) -> list[PoolRecord]:
        self.advance()
        return list(self.pools.values())

    def ours(self) -> list[PoolRecord]:
        return [pool for pool in self.listed() if "posttrain-managed-by" in pool.labels]

    def _start(self, kind: str, pool: str, seconds: float, finish: Callable[[], None]) -> OperationRecord:
        name = f"operation-{next(self._numbers)}"
        operation = OperationRecord(name, kind, pool, self.clock() + seconds, finish)
        operation.cluster = self.cluster.name if self.cluster else operation.cluster
        self.operations.append(operation)
        return operation

    def _cluster_created(self, cluster: ClusterRecord, fault: Fault, operation: OperationRecord) -> None:
        if self.cluster is not cluster or cluster.state == STOPPING:
            return
        if fault.leaves_nothing:
            self.cluster, self.pools = None, {}
        cluster.state = fault.state or (ERROR if fault.outcome else RUNNING)
        operation.error = cluster.message = fault.outcome
        for pool in self.pools.values() if cluster.state == RUNNING else ():
            pool.state, pool.nodes = RUNNING, int(pool.manifest.get("initial_node_count") or 0)
            cluster.nodes += pool.nodes

    def _created(self, pool: PoolRecord, fault: Fault, operation: OperationRecord) -> None:
        if self.pools.get(pool.name) is not pool or pool.state == STOPPING:
            return
        pool.etag += 1
        pool.state = fault.state or RUNNING
        if fault.outcome or fault.condition:
            words = fault.outcome.format(zone=pool.zone)
            operation.error, operation.condition, operation.is_terse = words, fault.condition, fault.is_terse
            pool.state, pool.message, pool.condition = fault.state or ERROR, words, fault.condition
        if fault.leaves_nothing:
            del self.pools[pool.name]
        elif pool.state == RUNNING:
            autoscaling = pool.manifest.get("autoscaling") or {}
            node_count = pool.manifest.get("initial_node_count") or autoscaling.get("total_max_node_count") or 0
            if (pool.manifest.get("queued_provisioning") or {}).get("enabled"):
                node_count = 0  # until a ProvisioningRequest is answered
            pool.nodes = node_count if fault.nodes is None else fault.nodes
            self.on_nodes(pool)

    def _deleted(self, pool: PoolRecord) -> None:
        if self.pools.get(pool.name) is pool:
            del self.pools[pool.name]

    def _refuse_second_change(self) -> None:
        running = next((each for each in self.operations if not each.is_done), None)
        if self.is_serial and running is not None:
            words = f"Cluster is running incompatible operation {running.name}."
            raise Refusal("FAILED_PRECONDITION", words)

    def _refuse_without_upgrades(self, manifest: dict[str, Any]) -> None:
        channel = self.cluster and (self.cluster.manifest.get("release_channel") or {}).get("channel")
        if channel and not (manifest.get("management") or {"auto_upgrade": True})["auto_upgrade"]:
            raise Refusal("INVALID_ARGUMENT", f"Auto_upgrade cannot be false when release_channel {channel} is set.")

    def _note_doubles(self, pool: PoolRecord) -> None:
        """Two pools for one slice of one job, both not on their way out."""
        mine = (pool.labels.get("posttrain-job-uid"), pool.labels.get("posttrain-slice"))
        for other in self.pools.values():
            theirs = (other.labels.get("posttrain-job-uid"), other.labels.get("posttrain-slice"))
            if other is not pool and mine[0] and mine == theirs and other.state != STOPPING:
                self.doubled.append(f"{pool.name} and {other.name} for slice {mine[1]} of {mine[0]}")
