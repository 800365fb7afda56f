"""The operator's own clusters: it is started, stopped and killed here, so nobody else's operator may be at work.

With --kube-context they run where this is so; a cluster with an operator, or with nodes, which do not see the files of
this machine, is left alone.
"""

import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.builders.cluster.control_planes import session_cluster, with_our_processes
from tests.builders.cluster.fake_jobs import Jobs
from tests.builders.cluster.operator_process import OperatorProcess

from ptkube.client import Kube
from ptkube.resources import DEPLOYMENTS, NAMESPACES, NODES, POSTTRAINJOBS
from ptlocal.kubelet.ports import free_port


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An API server with controllers (ours where it has none) and our kubelet, and no operator."""
    context = request.config.getoption("--kube-context")
    folder = tmp_path_factory.mktemp("operator-cluster")
    with session_cluster(context, folder) as cluster:
        if context and (reason := _not_ours(cluster.kube)):
            pytest.skip(reason)
        with with_our_processes(cluster, folder, without="operator") as access:
            yield replace(cluster, kubeconfig=access, context=None)


def _not_ours(kube: Kube) -> str:
    """Why these tests cannot use a cluster; empty if they can."""
    if kube.list(DEPLOYMENTS, labels="app.kubernetes.io/name=posttrain").items:
        return "the cluster of --kube-context has an operator of its own"
    if any(node["metadata"]["name"] != "local" for node in kube.list(NODES).items):
        return "the nodes of --kube-context do not see the trainer of these tests"
    return ""


@pytest.fixture(scope="session")
def kube(control_plane: Any) -> Kube:
    client: Kube = control_plane.kube
    return client


@pytest.fixture
def namespace(kube: Kube) -> Iterator[str]:
    name = f"op-{secrets.token_hex(4)}"
    kube.create(NAMESPACES, {"metadata": {"name": name}})
    yield name
    for job in kube.list(POSTTRAINJOBS, name).items:
        kube.delete(POSTTRAINJOBS, job["metadata"]["name"], name)


@pytest.fixture
def operator(control_plane: Any, namespace: str, tmp_path: Path) -> Iterator[OperatorProcess]:
    """The running operator of this test's namespace."""
    process = OperatorProcess(control_plane.kubeconfig, tmp_path, namespace, free_port())
    process.start()
    process.wait_ready()
    yield process
    process.kill()


@pytest.fixture
def jobs(kube: Kube, namespace: str, tmp_path: Path) -> Jobs:
    return Jobs(kube, namespace, tmp_path)
