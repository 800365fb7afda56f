"""The operator's own clusters: it is started, stopped and killed here, so nobody else's operator may be at work.

With --kube-context they run where this is so; a cluster with an operator, or with nodes, which do not see the files of
this machine, is left alone.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from apiaccess import Cluster  # noqa: E402
from controlplanes import session_cluster, with_current_context  # noqa: E402
from operatorprocess import OperatorProcess  # noqa: E402

from ptapi.status import PostTrainJobStatus  # noqa: E402
from ptkube.client import Kube, NotFound  # noqa: E402
from ptkube.resources import (  # noqa: E402
    CONFIGMAPS,
    DEPLOYMENTS,
    JOBS,
    JOBSETS,
    NAMESPACES,
    NODES,
    PODS,
    POSTTRAINJOBS,
    SERVICES,
    Manifest,
)
from ptlocal import cluster as local  # noqa: E402
from ptlocal.kubelet.ports import free_port  # noqa: E402

FAKE_TRAINER = Path(__file__).parent / "fake"
MADE_FOR_JOBS = (JOBSETS, JOBS, PODS, CONFIGMAPS, SERVICES)


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An API server with controllers (ours where it has none) and our kubelet, and no operator."""
    context = request.config.getoption("--kube-context")
    folder = tmp_path_factory.mktemp("operator-cluster")
    with session_cluster(context, folder) as found:
        if context and (reason := _not_ours(found.kube)):
            pytest.skip(reason)
        # the embedded API server reads logs from its own data directory
        data = found.data or tmp_path_factory.mktemp("node")
        api_server = with_current_context(found, folder / "access")
        try:
            local.up(data, say=lambda _: None, api_server=api_server, without=["operator"])
            yield Cluster(api_server, None, found.is_embedded, found.has_controller_manager, found.data)
        finally:
            local.down(data, say=lambda _: None, now=True)


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


class Jobs:
    """What a test does with jobs in its namespace, and what it sees of them."""

    def __init__(self, kube: Kube, namespace: str, folder: Path) -> None:
        self.kube = kube
        self.namespace = namespace
        self.runs = folder / "runs"

    def manifest(self, name: str, fake: dict[str, str] | None = None, **spec: Any) -> Manifest:
        """A small job run by the fake trainer."""
        env = {"PYTHONPATH": str(FAKE_TRAINER), **(fake or {})}
        base: Manifest = {
            "model": {"uri": "random://tiny"},
            "algorithm": {"sft": {}},
            "data": {"train": {"uri": "file:///nowhere.jsonl"}},
            "training": {"steps": 3, "batchSize": 8},
            "accelerator": {"type": "cpu-1"},
            "runPolicy": {"terminationGracePeriodSeconds": 10},
            "env": [{"name": key, "value": value} for key, value in env.items()],
            "output": {"uri": f"file://{self.runs}"},
        }
        meta = {"name": name, "namespace": self.namespace}
        head = {"apiVersion": "posttrain.dev/v1alpha1", "kind": "PostTrainJob", "metadata": meta}
        return {**head, "spec": {**base, **spec}}

    def create(self, name: str, fake: dict[str, str] | None = None, **spec: Any) -> Manifest:
        return self.kube.create(POSTTRAINJOBS, self.manifest(name, fake, **spec))

    def edit(self, name: str, **policy: Any) -> None:
        self.kube.patch(POSTTRAINJOBS, name, self.namespace, {"spec": {"runPolicy": policy}})

    def delete(self, name: str) -> None:
        self.kube.delete(POSTTRAINJOBS, name, self.namespace)

    def status(self, name: str) -> PostTrainJobStatus:
        job = self.kube.get(POSTTRAINJOBS, name, self.namespace)
        return PostTrainJobStatus.model_validate(job.get("status") or {})

    def wait_phase(self, name: str, *phases: str, timeout_s: float = 600.0) -> PostTrainJobStatus:
        self.wait(lambda: str(self.status(name).phase) in phases, timeout_s, lambda: self.status(name))
        return self.status(name)

    def wait(self, is_so: Callable[[], Any], timeout_s: float = 600.0, shown: Callable[[], Any] = lambda: "") -> None:
        end = time.monotonic() + timeout_s
        while not is_so():
            assert time.monotonic() < end, f"it did not come to be in {timeout_s:.0f} s: {shown()}"
            time.sleep(0.05)

    def left(self, name: str) -> list[str]:
        """Everything that was made for a job and is still there."""
        found = [
            f"{resource.kind} {item['metadata']['name']}"
            for resource in MADE_FOR_JOBS
            for item in self.kube.list(resource, self.namespace).items
            if name in item["metadata"]["name"]
        ]
        try:
            self.kube.get(POSTTRAINJOBS, name, self.namespace)
        except NotFound:
            return found
        return [f"PostTrainJob {name}", *found]

    def pods(self, name: str) -> list[Manifest]:
        return self.kube.list(PODS, self.namespace, labels=f"posttrain.dev/job={name}").items


@pytest.fixture
def jobs(kube: Kube, namespace: str, tmp_path: Path) -> Jobs:
    return Jobs(kube, namespace, tmp_path)
