"""Where a pod fits, and the sentence when it fits nowhere."""

from decimal import Decimal
from typing import Any

import pytest

from ptkube.resources import Manifest
from ptlocal.controllers.node_fit import choose_node, requests


def node(name: str = "local", **spec: Any) -> Manifest:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "zone": "a"}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "2", "memory": "4Gi", "pods": "3"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(*, on: str | None = None, cpu: str | None = None, resources: Manifest | None = None, **spec: Any) -> Manifest:
    requests = resources or ({"requests": {"cpu": cpu}} if cpu else {})
    placed = {"nodeName": on} if on else {}
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "resources": requests}], **placed, **spec}}


def test_a_pod_that_fits_is_placed() -> None:
    assert choose_node(pod(cpu="2"), [node()], []) == ("local", "")


TPU = {"limits": {"google.com/tpu": "4"}}
AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]
        }
    }
}


@pytest.mark.parametrize(
    ("wanted", "nodes", "placed", "message"),
    [
        (pod(), [], [], "no nodes available to schedule pods"),
        (pod(cpu="3"), [node()], [], "0/1 nodes are available: 1 Insufficient cpu."),
        (pod(cpu="1500m"), [node()], [pod(on="local", cpu="1")], "0/1 nodes are available: 1 Insufficient cpu."),
        (pod(resources=TPU), [node()], [], "0/1 nodes are available: 1 Insufficient google.com/tpu."),
        (pod(), [node()], [pod(on="local")] * 3, "0/1 nodes are available: 1 Too many pods."),
        (pod(nodeSelector={"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice"}), [node()], [],
         "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."),
        (pod(affinity=AFFINITY), [node()], [],
         "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."),
        (pod(), [node(taints=[{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}])], [],
         "0/1 nodes are available: 1 node(s) had untolerated taint {google.com/tpu: present}."),
        (pod(), [node(unschedulable=True)], [], "0/1 nodes are available: 1 node(s) were unschedulable."),
        (pod(cpu="3"), [node("a"), node("b", unschedulable=True), node("c")], [],
         "0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu."),
    ],
)  # fmt: skip
def test_why_a_pod_waits(wanted: Manifest, nodes: list[Manifest], placed: list[Manifest], message: str) -> None:
    assert choose_node(wanted, nodes, placed) == (None, message)


@pytest.mark.parametrize(
    "toleration",
    [
        {"key": "google.com/tpu", "operator": "Exists"},
        {"operator": "Exists"},
        {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"},
    ],
)
def test_a_tolerated_taint_is_no_obstacle(toleration: Manifest) -> None:
    tainted = node(taints=[{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}])
    assert choose_node(pod(tolerations=[toleration]), [tainted], [])[0] == "local"


def test_init_containers_count_by_their_peak_and_sidecars_all_along() -> None:
    def container(cpu: str, **more: Any) -> Manifest:
        return {"name": "x", "resources": {"requests": {"cpu": cpu}}, **more}

    wanted = pod(cpu="1", initContainers=[container("1", restartPolicy="Always"), container("4"), container("2")])
    assert requests(wanted) == {"cpu": Decimal(5)}


def test_limits_stand_for_requests_that_are_not_given() -> None:
    assert requests(pod(resources={"limits": {"cpu": "3"}})) == {"cpu": Decimal(3)}
    assert requests(pod(resources={"limits": {"cpu": "3"}, "requests": {"cpu": "1"}})) == {"cpu": Decimal(1)}
