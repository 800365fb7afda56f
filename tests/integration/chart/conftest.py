"""A cluster for Helm: an API server with controllers (the garbage collector too) and our kubelet, no operator, no CRD.

The CRD comes and goes here, and every job with it, so these tests never touch the cluster of --kube-context.
"""

import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("helm_python", reason="helm-python-sdk has no wheel for this platform")

from tests.builders.cluster.api_access import Cluster, find
from tests.builders.cluster.control_planes import session_cluster, with_our_processes
from tests.builders.cluster.fake_jobs import Jobs
from tests.builders.cluster.manifests import eventually
from tests.builders.cluster.operator_process import OperatorProcess
from tests.builders.helm_command import CRD, Helm

from ptkube.client import Kube
from ptkube.errors import NotFound
from ptkube.resources import CRDS, NAMESPACES, POSTTRAINJOBS
from ptlocal.kubelet.ports import free_port


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if request.config.getoption("--kube-context"):
        pytest.skip("every job of the cluster of --kube-context would go with the CRD")
    folder = tmp_path_factory.mktemp("helm-cluster")
    with session_cluster(None, folder) as cluster, with_our_processes(cluster, folder, without="operator") as access:
        yield replace(cluster, kubeconfig=access)


@pytest.fixture
def kube(control_plane: Cluster) -> Iterator[Kube]:
    """Without the CRD, before and after."""
    kube = control_plane.kube
    remove_crd(kube)
    yield kube
    for name, namespace in Helm(control_plane.kubeconfig).releases():
        Helm(control_plane.kubeconfig).run(f"helm uninstall {name} --namespace {namespace}")
    remove_crd(kube)


def remove_crd(kube: Kube) -> None:
    """As whoever wants every job gone, without an operator."""
    with suppress(NotFound):
        for job in kube.list(POSTTRAINJOBS).items:
            meta = job["metadata"]
            kube.patch(POSTTRAINJOBS, meta["name"], meta["namespace"], {"metadata": {"finalizers": None}})
    with suppress(NotFound):
        kube.delete(CRDS, CRD)
    eventually(lambda: find(kube, CRDS, CRD) is None)


@pytest.fixture
def helm(control_plane: Cluster, kube: Kube) -> Helm:
    return Helm(control_plane.kubeconfig)


@pytest.fixture
def namespace(kube: Kube) -> str:
    name = f"helm-{secrets.token_hex(4)}"
    kube.create(NAMESPACES, {"metadata": {"name": name}})
    return name


@pytest.fixture
def jobs(kube: Kube, namespace: str, tmp_path: Path) -> Jobs:
    return Jobs(kube, namespace, tmp_path)


@pytest.fixture
def operator(control_plane: Cluster, namespace: str, tmp_path: Path) -> Iterator[Any]:
    """What the Deployment would run; a test starts and stops it where Helm makes and deletes the Deployment."""
    process = OperatorProcess(control_plane.kubeconfig, tmp_path, namespace, free_port())
    yield process
    if not process.is_dead():
        process.stop()  # gives the Lease back, for which the next test's would wait
