"""The cluster the integration tests run against, chosen once per session.

- by default our embedded API server, started in a temporary directory;
- with KUBEBUILDER_ASSETS set, a real etcd and kube-apiserver (and kube-controller-manager where its binary is there);
- with --kube-context NAME, that cluster of the user's kubeconfig.

Tests ask `cluster` what it is (`is_embedded`, `has_controller_manager`) and skip what it cannot show; they never expect
something else of a real server.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    # Imported where it is used: `make aot` runs some of these tests without a Kubernetes client.
    from pathlib import Path

    from tests.builders.cluster.api_access import Cluster


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kube-context", help="run the integration tests on this context of the kubeconfig")


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One in which the tests of some rooms start everything of ours, the operator too."""
    from tests.builders.cluster.control_planes import session_cluster

    with session_cluster(request.config.getoption("--kube-context"), tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="session")
def kubeconfig(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of the session's cluster, in which everything of ours runs until the last test, whichever room's asked first."""
    from tests.builders.cluster.control_planes import with_our_processes

    with with_our_processes(cluster, tmp_path_factory.getbasetemp()) as access:
        yield access


@pytest.fixture(scope="session")
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An API server alone, with no controller, kubelet or operator of ours beside it, whatever other tests start."""
    from tests.builders.cluster.control_planes import session_cluster

    with session_cluster(request.config.getoption("--kube-context"), tmp_path_factory.mktemp("api")) as started:
        yield started


@pytest.fixture
def namespace(api: Cluster) -> Iterator[str]:
    """A namespace of the test's own, in the API server alone."""
    from ptkube.errors import NotFound
    from ptkube.resources import NAMESPACES

    name = f"t-{uuid.uuid4().hex[:10]}"
    api.kube.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    with suppress(NotFound):  # the test deleted it
        api.kube.delete(NAMESPACES, name)
