"""Our controllers, kubelet stand-in and operator as clients of the session's API server, embedded or real.

Each steps aside where the real one is at work; a cluster with nodes of its own keeps them and gets no kubelet of ours.
"""

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.builders.cluster import manifests as waiting
from tests.builders.cluster.api_access import find

from ptkube.client import ApiError, Kube
from ptkube.resources import CONFIGMAPS, JOBS, JOBSETS, NAMESPACES, PODS, POSTTRAINJOBS, Manifest, Resource


@pytest.fixture(scope="session")
def kube(cluster: Any, kubeconfig: Path) -> Kube:
    """A client of the session's cluster, in which everything of ours runs."""
    client: Kube = cluster.kube
    return client


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
    """Wait until a condition holds: eventually(PODS, name, namespace, lambda pod: ...). None stands for gone."""

    def wait(
        resource: Resource, name: str, namespace: str, is_so: Callable[[Manifest | None], Any], timeout_s: float = 600.0
    ) -> Manifest | None:
        latest: list[Manifest | None] = []

        def look() -> bool:
            latest[:] = [find(kube, resource, name, namespace)]
            return bool(is_so(latest[0]))

        waiting.eventually(look, timeout_s, lambda: f"{resource.kind} {namespace}/{name}: {latest}")
        return latest[0]

    return wait  # type: ignore[return-value]
