"""GKE's API as `ptctl cluster` needs it: read, create, delete, with errors that say what to do.

The client and the conversion of its values are the operator's. Nothing here waits or repeats; `creation` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from google.api_core import exceptions
from google.cloud import container_v1 as container

from ptctl.cluster.cloud.cloud_errors import CloudError, MissingInCloudError, cloud_error
from ptctl.cluster.cloud.settings import CloudSettings
from ptctl.cluster.definition.requests import MAKER
from ptkube.resources import Manifest
from ptoperator.capacity.cloud import Operation
from ptoperator.capacity.cloud_errors import CloudFailure
from ptoperator.capacity.gke.convert import operation_of, pool_of
from ptoperator.capacity.gke.node_pool_api import connect
from ptoperator.kube import labels

T = TypeVar("T")
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class PoolView:
    """A node pool. maker: who made it, by its labels: ptctl, the operator (posttrain), or empty for anybody else."""

    name: str
    state: str
    maker: str
    shape: str = ""
    machine: str = ""
    nodes: int = 0
    zones: tuple[str, ...] = ()
    is_autoprovisioned: bool = False
    failures: tuple[CloudFailure, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ClusterView:
    """A cluster. spec_hash: of the request that it was made by. raw: everything that GKE says of it."""

    name: str
    location: str
    state: str
    message: str
    is_ours: bool
    spec_hash: str
    raw: Any
    pools: tuple[PoolView, ...] = ()

    @property
    def nodes(self) -> int:
        """Return how many nodes it has."""
        return int(self.raw.current_node_count)


def open_gke(settings: CloudSettings) -> Gke:
    """Return GKE's API. Raises CliError where there are no credentials."""
    if settings.is_test_server:
        return Gke(connect(settings.gke_endpoint))
    options = {"api_endpoint": settings.gke_endpoint.rpartition("://")[2]} if settings.gke_endpoint else None
    return Gke(container.ClusterManagerClient(credentials=settings.credentials(), client_options=options))


class Gke:
    """Clusters and node pools. Raises CloudError for everything that GKE refuses."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def get(self, path: str) -> ClusterView | None:
        """Return a cluster by its resource name; None if there is none."""
        try:
            return _view(self._call(self._client.get_cluster, container.GetClusterRequest(name=path)))
        except MissingInCloudError:
            return None

    def clusters(self, project: str, location: str = "-") -> list[ClusterView]:
        """Return the clusters of a location, or of all."""
        request = container.ListClustersRequest(parent=f"projects/{project}/locations/{location}")
        return [_view(each) for each in self._call(self._client.list_clusters, request).clusters]

    def operations(self, parent: str, cluster: str) -> list[Operation]:
        """Return the operations on a cluster and its pools, as long as GKE lists them."""
        listed = self._call(self._client.list_operations, container.ListOperationsRequest(parent=parent))
        return [each for each in (operation_of(raw, cluster) for raw in listed.operations) if each is not None]

    def create_cluster(self, body: Manifest) -> str:
        """Start creating a cluster; return the operation's name."""
        return self._start(self._client.create_cluster, container.CreateClusterRequest(body))

    def create_pool(self, body: Manifest) -> str:
        """Start creating a node pool; return the operation's name."""
        return self._start(self._client.create_node_pool, container.CreateNodePoolRequest(body))

    def delete_cluster(self, path: str) -> str:
        """Start deleting a cluster; return the operation's name."""
        return self._start(self._client.delete_cluster, container.DeleteClusterRequest(name=path))

    def delete_pool(self, path: str) -> str:
        """Start deleting a node pool; return the operation's name."""
        return self._start(self._client.delete_node_pool, container.DeleteNodePoolRequest(name=path))

    def _start(self, method: Callable[..., Any], request: Any) -> str:
        return str(self._call(method, request).name)

    def _call(self, method: Callable[..., T], request: Any) -> T:
        try:
            return method(request=request, retry=None, timeout=_TIMEOUT_S)
        except exceptions.RetryError as error:
            raise cloud_error(exceptions.DeadlineExceeded(str(error))) from error
        except exceptions.GoogleAPICallError as error:
            raise cloud_error(error) from error


def find(gke: Gke, project: str, name: str, location: str | None) -> ClusterView:
    """Return the cluster of this name. Raises MissingInCloudError; CloudError where several have it."""
    if location:
        path = f"projects/{project}/locations/{location}/clusters/{name}"
        return _present(gke.get(path), f"cluster {name} in {location} of project {project}")
    matches = [each for each in gke.clusters(project) if each.name == name]
    if len(matches) > 1:
        locations = ", ".join(each.location for each in matches)
        raise CloudError("AMBIGUOUS", f"cluster {name}: in {locations}", "choose one with --location")
    return _present(next(iter(matches), None), f"cluster {name} in project {project}")


def _present(cluster: ClusterView | None, what: str) -> ClusterView:
    if cluster is None:
        raise MissingInCloudError("NOT_FOUND", f"{what} does not exist", "`ptctl cluster list` shows those that do")
    return cluster


def _view(raw: Any) -> ClusterView:
    resource_labels = dict(raw.resource_labels)
    return ClusterView(
        name=raw.name,
        location=raw.location,
        state=_name(raw.status),
        message=raw.status_message or "; ".join(each.message for each in raw.conditions if each.message),
        is_ours=resource_labels.get(labels.MADE_BY) == MAKER,
        spec_hash=resource_labels.get(labels.POOL_SHAPE, ""),
        raw=raw,
        pools=tuple(_pool_view(each) for each in raw.node_pools),
    )


def _pool_view(raw: Any) -> PoolView:
    resource_labels: dict[str, str] = dict(raw.config.resource_labels)
    return PoolView(
        name=raw.name,
        state=_name(raw.status),
        maker=resource_labels.get(labels.MADE_BY) or resource_labels.get(labels.POOL_MANAGER) or "",
        shape=resource_labels.get(labels.POOL_SHAPE, ""),
        machine=raw.config.machine_type,
        nodes=raw.initial_node_count,
        zones=tuple(raw.locations),
        is_autoprovisioned=raw.autoscaling.autoprovisioned,
        failures=pool_of(raw).failures,
        labels=resource_labels,
    )


def _name(value: Any) -> str:
    return str(getattr(value, "name", value))
