"""What the doctor says of GPU nodes and of the networks that the operator is told of."""

from typing import Any, cast

import pytest

from ptctl.cluster.doctor import gpus
from ptctl.cluster.doctor.finding import CheckContext, Finding, Severity
from ptctl.cluster.in_cluster.survey import Controller, Survey
from ptkube.client import Kube
from ptkube.errors import NotFound
from ptkube.resources import DEPLOYMENTS, NODES, PODS

RDMA = "gvnic-1=v/s, rdma-0=w/t"
READY = {"status": {"numberReady": 2, "desiredNumberScheduled": 2}}


def put_node(kube: Any, name: str, gpu: str = "nvidia-h200-141gb", served: int = 8, driver: str = "latest") -> None:
    marks = {"cloud.google.com/gke-accelerator": gpu, "cloud.google.com/gke-gpu-driver-version": driver}
    allocatable = {"nvidia.com/gpu": str(served)} if served else {}
    kube.put(NODES, {"metadata": {"name": name, "labels": marks}, "status": {"allocatable": allocatable}})


def put_plugin(kube: Any, node: str, **state: Any) -> None:
    own = {"name": f"plugin-{node}", "namespace": "kube-system", "labels": {"k8s-app": "nvidia-gpu-device-plugin"}}
    status = {"initContainerStatuses": [{"name": "nvidia-driver-installer", "state": state}]}
    kube.put(PODS, {"metadata": own, "spec": {"nodeName": node}, "status": status if state else {}})


def put_network(kube: Any, name: str, **condition: str) -> None:
    kube.put(gpus.NETWORKS, {"metadata": {"name": name}})
    conditions = [{"type": "Ready", "status": "True", **condition}]
    kube.put(gpus._PARAMETERS, {"metadata": {"name": name}, "status": {"conditions": conditions}})


def examine(kube: Any, networks: str = "") -> list[Finding]:
    env = [{"name": "POSTTRAIN_GPU_NETWORKS", "value": networks}]
    pod = {"spec": {"template": {"spec": {"containers": [{"env": env}]}}}}
    kube.put(DEPLOYMENTS, {"metadata": {"name": "o", "namespace": "s"}, **pod})
    operator = Controller("o", "s", "1", 1, 1)
    present = Survey("v1.34.0", {}, operator, None, None)
    return list(gpus.check(CheckContext(cast(Kube, kube), present, "default")))


def test_a_cluster_without_gpus_gets_no_line(kube: Any) -> None:
    assert examine(kube) == []


def test_all_is_well(kube: Any) -> None:
    put_node(kube, "n")
    marks = {"app.kubernetes.io/name": "gke-managed-dcgm-exporter"}
    kube.put(PODS, {"metadata": {"name": "d", "namespace": "gke-managed-system", "labels": marks}, "spec": {}})
    own = {"name": "nccl-rdma-installer", "namespace": "kube-system"}
    kube.put(gpus._DAEMON_SETS, {"metadata": own, **READY})
    for name in ("gvnic-1", "rdma-0"):
        put_network(kube, name)
    findings = examine(kube, RDMA)
    assert [each.severity for each in findings] == [Severity.OK] * 4, findings


CASES: dict[str, tuple[dict[str, Any] | None, str, str, str]] = {
    "no plugin": (None, "latest", "no pod of GKE's device plugin runs there", "label gke-no-default"),
    "a failed driver": (
        {"waiting": {"reason": "CrashLoopBackOff"}}, "latest",
        "the driver is not installed (nvidia-driver-installer: CrashLoopBackOff)", "kubectl logs -n kube-system",
    ),
    "a driver on its way": ({"running": {}}, "latest", "the driver is being installed", "it takes minutes"),
    "no driver wanted": ({}, "", "GKE installs no driver on that pool", "gpu-driver-version=latest"),
    "a silent plugin": ({}, "latest", "the device plugin serves none", "kubectl logs"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_node_that_serves_no_gpus_says_why_and_what_to_do(kube: Any, case: str) -> None:
    state, driver, reason, fix = CASES[case]
    put_node(kube, "n", "nvidia-l4", served=0, driver=driver)
    if state is not None:
        put_plugin(kube, "n", **state)
    broken = examine(kube)[0]
    assert (broken.severity, broken.message) == (Severity.ERROR, f"n: no nvidia.com/gpu: {reason}")
    assert fix in broken.fix


def test_many_nodes_with_one_trouble_are_one_finding(kube: Any) -> None:
    for number in range(5):
        put_node(kube, f"n{number}", served=0)
    assert examine(kube)[0].message.startswith("n0, n1, n2 and 2 more: no nvidia.com/gpu: ")


def test_machines_with_several_nics_without_named_networks_are_told(kube: Any) -> None:
    put_node(kube, "n", "nvidia-h100-mega-80gb")
    assert "talk over the first NIC" in examine(kube)[-1].message
    put_node(kube, "n", "nvidia-l4")
    assert "first NIC" not in examine(kube)[-1].message


def test_networks_that_are_named_in_vain_and_a_missing_plugin_have_a_fix(kube: Any) -> None:
    put_network(kube, "gvnic-1", status="False", message="subnet s does not exist")
    missing, unready, plugin = examine(kube, RDMA)
    assert "networks rdma-0 are named and not in the cluster" in missing.message
    assert "ptctl cluster install" in missing.fix
    assert unready.message == "GKENetworkParamSet gvnic-1: subnet s does not exist"
    assert "nccl-rdma-installer is not there" in plugin.message
    assert "gpudirect-rdma/nccl-rdma-installer.yaml" in plugin.fix
    own = {"name": "nccl-tcpxo-installer", "namespace": "kube-system"}
    kube.put(gpus._DAEMON_SETS, {"metadata": own, "status": {"numberReady": 1, "desiredNumberScheduled": 2}})
    assert "1 of 2 nodes have NCCL's plugin" in examine(kube, "vpc1=v/s")[-1].message


def test_a_cluster_without_multi_networking_is_told_that_it_cannot_be_added(
    kube: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = kube.list

    def served(r: Any, *args: Any, **options: Any) -> Any:
        if r.group == "networking.gke.io":
            raise NotFound(404, "NotFound", "the server could not find the requested resource")
        return listed(r, *args, **options)

    monkeypatch.setattr(kube, "list", served)
    first = examine(kube, RDMA)[0]
    assert (first.severity, "no multi-networking" in first.message) == (Severity.ERROR, True)
    assert "--enable-multi-networking" in first.fix
