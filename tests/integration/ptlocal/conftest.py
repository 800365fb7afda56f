"""Our controllers, kubelet stand-in and operator as clients of the session's API server, embedded or real.

Each steps aside where the real one is at work; a cluster with nodes of its own keeps them and gets no kubelet of ours.
"""

import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.builders.cluster.control_planes import with_current_context

from ptkube.client import ApiError, Kube, NotFound
from ptkube.resources import CONFIGMAPS, JOBS, JOBSETS, NAMESPACES, NODES, PODS, POSTTRAINJOBS, Manifest, Resource
from ptlocal import cluster as local


@pytest.fixture(scope="session")
def kube(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    """A client of the session's cluster, in which everything of ours runs."""
    # the embedded API server reads logs from its own data directory
    data = cluster.data or tmp_path_factory.mktemp("node")
    api_server = with_current_context(cluster, tmp_path_factory.mktemp("access"))
    own_nodes = [n for n in cluster.kube.list(NODES).items if n["metadata"]["name"] != "local"]
    try:
        local.up(data, say=lambda _: None, api_server=api_server, without=["kubelet"] if own_nodes else [])
        yield cluster.kube
    finally:
        local.down(data, say=lambda _: None, now=True)


@pytest.fixture
def namespace(kube: Kube) -> Iterator[str]:
    """A namespace of the test's own, emptied afterwards: a bare kube-apiserver never finishes deleting one."""
    name = f"test-{secrets.token_hex(4)}"
    kube.create(NAMESPACES, {"metadata": {"name": name}})
    yield name
    for resource in (POSTTRAINJOBS, JOBSETS, JOBS, PODS, CONFIGMAPS):
        for item in kube.list(resource, name).items:
            try:
                kube.delete(resource, item["metadata"]["name"], name, grace_s=0 if resource == PODS else None)
            except ApiError:
                continue
    try:
        kube.delete(NAMESPACES, name)
    except ApiError:
        return


Eventually = Callable[..., Manifest]


@pytest.fixture
def eventually(kube: Kube) -> Eventually:
    """Wait until an object is as told: eventually(PODS, name, namespace, lambda pod: ...). None stands for gone."""

    def wait(
        resource: Resource, name: str, namespace: str, is_so: Callable[[Manifest | None], Any], timeout_s: float = 600.0
    ) -> Manifest | None:
        deadline = time.monotonic() + timeout_s
        found: Manifest | None = None
        while time.monotonic() < deadline:
            try:
                found = kube.get(resource, name, namespace)
            except NotFound:
                found = None
            if is_so(found):
                return found
            time.sleep(0.05)
        raise AssertionError(f"{resource.kind} {namespace}/{name} did not get there in {timeout_s} s: {found}")

    return wait  # type: ignore[return-value]
