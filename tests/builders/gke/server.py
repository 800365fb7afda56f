"""A server that speaks google.container.v1's ClusterManager over gRPC, on top of `gkemodel`.

`script` is asked about every call, and the pool it names, before it is carried out and may make it fail, slow, or lose
its answer: the change is made and the caller hears UNAVAILABLE. `after` hears of it when it was carried out. `calls`
counts.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import grpc
from google.cloud import container_v1 as container
from tests.builders.gke.model import ClusterRecord, GkeModel, OperationRecord, PoolRecord, Refusal

SERVICE = "google.container.v1.ClusterManager"
PROJECT, LOCATION, CLUSTER = "p", "us-east5", "c"
_PREFIX = f"projects/{PROJECT}/locations/{LOCATION}"
_CLUSTERS_LINK = f"https://container.googleapis.com/v1/{_PREFIX}/clusters"


@dataclass(frozen=True)
class Twist:
    """refuse: (gRPC code, words). lose_answer: carried out, then UNAVAILABLE. repeat: it comes twice, and the second
    answer is the one that is heard. seconds: it takes so long. retry_after_s: how long the refusal asks for no further
    call."""

    refuse: tuple[str, str] | None = None
    lose_answer: bool = False
    repeat: bool = False
    seconds: float = 0.0
    retry_after_s: int | None = None


class GkeServer:
    """`with GkeServer(model) as server:` listens on `server.endpoint`."""

    def __init__(
        self,
        model: GkeModel,
        script: Callable[[str, str], Twist | None] = lambda call, pool: None,
        after: Callable[[str, str], None] = lambda call, pool: None,
    ) -> None:
        self.model = model
        self.script = script
        self.after = after
        self.calls: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, self._methods()),))
        self._port = self._server.add_insecure_port("127.0.0.1:0")

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait(5)

    def _methods(self) -> dict[str, Any]:
        table: dict[str, tuple[Any, Any, Callable[[Any], Any]]] = {
            "GetCluster": (container.GetClusterRequest, container.Cluster, self._get_cluster),
            "ListClusters": (container.ListClustersRequest, container.ListClustersResponse, self._list_clusters),
            "CreateCluster": (container.CreateClusterRequest, container.Operation, self._create_cluster),
            "DeleteCluster": (container.DeleteClusterRequest, container.Operation, self._delete_cluster),
            "ListNodePools": (container.ListNodePoolsRequest, container.ListNodePoolsResponse, self._list_pools),
            "GetNodePool": (container.GetNodePoolRequest, container.NodePool, self._get_pool),
            "CreateNodePool": (container.CreateNodePoolRequest, container.Operation, self._create),
            "UpdateNodePool": (container.UpdateNodePoolRequest, container.Operation, self._update),
            "DeleteNodePool": (container.DeleteNodePoolRequest, container.Operation, self._delete),
            "ListOperations": (
                container.ListOperationsRequest,
                container.ListOperationsResponse,
                self._list_operations,
            ),
            "GetOperation": (container.GetOperationRequest, container.Operation, self._get_operation),
        }
        return {
            name: grpc.unary_unary_rpc_method_handler(
                self._handler(name, handle), request_type.deserialize, response_type.serialize
            )
            for name, (request_type, response_type, handle) in table.items()
        }

    def _handler(self, name: str, handle: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
        def serve(request: Any, context: Any) -> Any:
            with self._lock:
                self.calls[name] += 1
            twist = self.script(name, _named(request)) or Twist()
            time.sleep(twist.seconds)
            try:
                if twist.refuse:
                    raise Refusal(*twist.refuse)
                with self._lock:
                    if twist.repeat:
                        handle(request)
                    answer = handle(request)
            except Refusal as refusal:
                if twist.retry_after_s is not None:
                    context.set_trailing_metadata((("retry-after", str(twist.retry_after_s)),))
                context.abort(grpc.StatusCode[refusal.code], refusal.message)
            self.after(name, _named(request))
            if twist.lose_answer:
                context.abort(grpc.StatusCode.UNAVAILABLE, "the answer was lost")
            return answer

        return serve

    def _get_cluster(self, request: Any) -> Any:
        parent, _, name = request.name.partition("/clusters/")
        if parent != _PREFIX:
            raise Refusal("NOT_FOUND", f"Not found: {request.name}.")
        return self._cluster(self.model.get_cluster(name))

    def _list_clusters(self, request: Any) -> Any:
        self.model.advance()
        there = [self.model.cluster] if self.model.cluster else []
        return container.ListClustersResponse(clusters=[self._cluster(each) for each in there])

    def _create_cluster(self, request: Any) -> Any:
        if request.parent != _PREFIX:
            raise Refusal("NOT_FOUND", f"Not found: {request.parent}.")
        manifest: dict[str, Any] = container.Cluster.to_dict(request.cluster, use_integers_for_enums=False)
        pools = [_manifest(pool) for pool in request.cluster.node_pools]
        return _operation(self.model.create_cluster({**manifest, "node_pools": []}, pools))

    def _delete_cluster(self, request: Any) -> Any:
        return _operation(self.model.delete_cluster(_last(request.name)))

    def _cluster(self, cluster: ClusterRecord) -> Any:
        made = container.Cluster(cluster.manifest, ignore_unknown_fields=True)
        made.locations = made.locations or list(self.model.zones)
        made.location, made.status, made.status_message = LOCATION, cluster.state, cluster.message
        made.current_node_count, made.current_master_version = cluster.nodes, "1.34.1-gke.1829001"
        made.endpoint = cluster.endpoint
        made.master_auth.cluster_ca_certificate = cluster.certificate
        made.node_pools = [_pool(pool) for pool in self.model.pools.values()]
        return made

    def _list_pools(self, request: Any) -> Any:
        self.model.advance()
        return container.ListNodePoolsResponse(node_pools=[_pool(pool) for pool in self.model.pools.values()])

    def _get_pool(self, request: Any) -> Any:
        return _pool(self.model.get(_last(request.name)))

    def _create(self, request: Any) -> Any:
        return _operation(self.model.create(_manifest(request.node_pool)))

    def _update(self, request: Any) -> Any:
        return _operation(self.model.label(_last(request.name), request.etag, dict(request.resource_labels.labels)))

    def _delete(self, request: Any) -> Any:
        return _operation(self.model.delete(_last(request.name)))

    def _list_operations(self, request: Any) -> Any:
        self.model.advance()
        listed = [_operation(each) for each in self.model.operations if each.is_listed]
        return container.ListOperationsResponse(operations=listed)

    def _get_operation(self, request: Any) -> Any:
        self.model.advance()
        name = _last(request.name)
        operation = next((each for each in self.model.operations if each.name == name), None)
        if operation is None:
            raise Refusal("NOT_FOUND", f"Not found: {request.name}.")
        return _operation(operation)


def _manifest(pool: Any) -> dict[str, Any]:
    """What was asked for, as the model keeps it."""
    config: dict[str, Any] = container.NodeConfig.to_dict(pool.config, use_integers_for_enums=False)
    return {
        "name": pool.name,
        "locations": list(pool.locations),
        "initial_node_count": pool.initial_node_count,
        "autoscaling": {"total_max_node_count": pool.autoscaling.total_max_node_count},
        "management": {"auto_upgrade": pool.management.auto_upgrade},
        "queued_provisioning": {"enabled": pool.queued_provisioning.enabled},
        "placement_policy": {
            "tpu_topology": pool.placement_policy.tpu_topology,
            "policy_name": pool.placement_policy.policy_name,
        },
        "config": config,
    }


def _pool(pool: PoolRecord) -> Any:
    message = container.NodePool(
        name=pool.name,
        status=pool.state,
        status_message=pool.message,
        locations=pool.manifest["locations"],
        etag=str(pool.etag),
        initial_node_count=int(pool.manifest.get("initial_node_count") or 0),
        config={
            "resource_labels": pool.labels,
            "machine_type": pool.manifest["config"].get("machine_type", ""),
            "flex_start": bool(pool.manifest["config"].get("flex_start")),
        },
    )
    if pool.condition:
        message.conditions = [{"code": pool.condition, "message": pool.message}]
    return message


def _operation(operation: OperationRecord) -> Any:
    link = f"{_CLUSTERS_LINK}/{operation.cluster}"
    message = container.Operation(
        name=operation.name,
        operation_type=operation.kind,
        status="DONE" if operation.is_done else "RUNNING",
        target_link=f"{link}/nodePools/{operation.pool}" if operation.pool else link,
        status_message=operation.error,
    )
    if operation.error and not operation.is_terse:
        message.error = {"code": 8, "message": operation.error}
    if operation.condition:
        message.nodepool_conditions = [{"code": operation.condition, "message": operation.error}]
    return message


def _named(request: Any) -> str:
    """The pool or cluster that a request is about; of a list, nothing."""
    made = getattr(request, "node_pool", None) or getattr(request, "cluster", None)
    return str(made.name) if made else _last(getattr(request, "name", ""))


def _last(path: str) -> str:
    return path.rpartition("/")[2]
