"""The calls of GKE's API that the operator makes, each one request; they raise `GoogleAPICallError`."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import grpc
from google.api_core import exceptions
from google.cloud import container_v1 as container
from google.cloud.container_v1.services.cluster_manager import transports

from ptkube.resources import Manifest
from ptoperator.settings import Settings

T = TypeVar("T")


class NodePoolApi:
    """The node pools of one cluster, as protobufs. client: of the API; None: Google's, with default credentials.

    Lists are without Google's wrappers, which take seven times as long to read: a thousand jobs have thousands of
    operations, and whoever waits for a snapshot waits for that.
    """

    def __init__(self, settings: Settings, client: Any = None) -> None:
        self._region = f"projects/{settings.gke_project}/locations/{settings.gke_location}"
        self._cluster = f"{self._region}/clusters/{settings.gke_cluster}"
        self._timeout_s = settings.cloud_timeout_seconds
        self._client = client or connect(settings.gke_endpoint)

    def zones(self) -> tuple[str, ...]:
        """Return the zones of the cluster."""
        request = container.GetClusterRequest(name=self._cluster)
        return tuple(self._call(self._client.get_cluster, request).locations)

    def operations(self) -> Sequence[Any]:
        """Return the operations of the region: those that run, and those that ended lately."""
        request = container.ListOperationsRequest(parent=self._region)
        answer = self._call(self._client.list_operations, request)
        operations: Sequence[Any] = _unwrapped(container.ListOperationsResponse, answer).operations
        return operations

    def node_pools(self) -> Sequence[Any]:
        """Return all node pools."""
        request = container.ListNodePoolsRequest(parent=self._cluster)
        answer = self._call(self._client.list_node_pools, request)
        node_pools: Sequence[Any] = _unwrapped(container.ListNodePoolsResponse, answer).node_pools
        return node_pools

    def node_pool(self, name: str) -> Any | None:
        """Return a node pool, or None if there is none of that name."""
        try:
            return self._call(self._client.get_node_pool, container.GetNodePoolRequest(name=self._path(name)))
        except exceptions.NotFound:
            return None

    def create(self, manifest: Manifest) -> str:
        """Start to create a node pool; return the operation."""
        request = container.CreateNodePoolRequest(parent=self._cluster, node_pool=manifest)
        return str(self._call(self._client.create_node_pool, request).name)

    def label(self, name: str, etag: str, labels: dict[str, str]) -> str:
        """Start to replace a node pool's labels, if it still has this etag; return the operation."""
        request = container.UpdateNodePoolRequest(
            name=self._path(name), etag=etag, resource_labels=container.ResourceLabels(labels=labels)
        )
        return str(self._call(self._client.update_node_pool, request).name)

    def delete(self, name: str) -> str:
        """Start to delete a node pool; return the operation."""
        request = container.DeleteNodePoolRequest(name=self._path(name))
        return str(self._call(self._client.delete_node_pool, request).name)

    def _call(self, method: Callable[..., T], request: Any) -> T:
        """Call without the library's retries: the work queue retries with its own pauses."""
        try:
            return method(request=request, retry=None, timeout=self._timeout_s)
        except exceptions.RetryError as error:
            raise exceptions.DeadlineExceeded(str(error)) from error

    def _path(self, name: str) -> str:
        return f"{self._cluster}/nodePools/{name}"


def _unwrapped(kind: Any, answer: Any) -> Any:
    """Return a message without its wrapper; what has none as it is."""
    return kind.pb(answer) if isinstance(answer, kind) else answer


def connect(endpoint: str) -> Any:
    """Return a client with Application Default Credentials; an `http://…` endpoint, a test server, gets none."""
    scheme, _, address = endpoint.rpartition("://")
    if scheme == "http":
        transport = transports.ClusterManagerGrpcTransport(channel=grpc.insecure_channel(address))
        return container.ClusterManagerClient(transport=transport)
    return container.ClusterManagerClient(client_options={"api_endpoint": address} if address else None)
