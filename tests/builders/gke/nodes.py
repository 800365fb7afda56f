"""Nodes of a pretended GKE in a real API server: they appear and vanish with their pools, and pods run on them.

A pod that is bound to such a node starts at once and ends well after `pod_seconds`; there is no process behind it.
"""

import threading
from typing import Any, Self

from tests.builders.gke.model import PoolRecord

from ptapi.accelerators import table
from ptapi.accelerators.table import Machine, chip_count
from ptkube.client import AlreadyExists, ApiError, Kube, NotFound
from ptkube.resources import NODES, PODS, Manifest
from ptkube.timestamps import timestamp

POOL = "cloud.google.com/gke-nodepool"
_EFFECTS = {"NO_SCHEDULE": "NoSchedule", "NO_EXECUTE": "NoExecute", "PREFER_NO_SCHEDULE": "PreferNoSchedule"}


class GkeNodes:
    """`on_nodes` is what `GkeModel.on_nodes` calls. Use it as a context for the pods to run."""

    def __init__(self, kube: Kube, namespace: str, pod_seconds: float = 2.0, poll_s: float = 0.2) -> None:
        self._kube = kube
        self._namespace = namespace
        self._poll_s = poll_s
        self._pod_polls = max(1, round(pod_seconds / poll_s))
        self._ages: dict[str, int] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(10)
        for node in self._kube.list(NODES, labels=POOL).items:
            self._kube.delete(NODES, node["metadata"]["name"])

    def on_nodes(self, pool: PoolRecord) -> None:
        """Make the nodes be as many as the pool says."""
        there = self._kube.list(NODES, labels=f"{POOL}={pool.name}").items
        for node in there[pool.nodes :]:
            self._kube.delete(NODES, node["metadata"]["name"])
        for index in range(len(there), pool.nodes):
            node = node_of(pool, index)
            try:
                self._kube.create(NODES, node)
            except AlreadyExists:
                continue
            self._kube.patch(NODES, node["metadata"]["name"], None, {"status": node["status"]}, subresource="status")

    def _run(self) -> None:
        while not self._is_over.wait(self._poll_s):
            try:
                self._step()
            except ApiError:
                pass  # changed meanwhile; the next round sees it

    def _step(self) -> None:
        ours = {node["metadata"]["name"] for node in self._kube.list(NODES, labels=POOL).items}
        for pod in self._kube.list(PODS, self._namespace).items:
            if (pod["spec"].get("nodeName") or "local") == "local":
                continue
            name, phase = pod["metadata"]["name"], (pod.get("status") or {}).get("phase", "Pending")
            if pod["metadata"].get("deletionTimestamp"):
                if phase in ("Pending", "Running"):
                    self._patch(name, _ended("Failed", 143, "Error"))
                self._delete(name)
            elif phase == "Pending" and pod["spec"]["nodeName"] in ours:
                self._patch(name, _running())
            elif phase == "Running":
                self._ages[name] = self._ages.get(name, 0) + 1
                if self._ages[name] > self._pod_polls:
                    self._patch(name, _ended("Succeeded", 0, "Completed"))

    def _patch(self, name: str, status: Manifest) -> None:
        self._kube.patch(PODS, name, self._namespace, {"status": status}, subresource="status")

    def _delete(self, name: str) -> None:
        try:
            self._kube.delete(PODS, name, self._namespace, grace_s=0)
        except NotFound:
            pass


def node_of(pool: PoolRecord, index: int) -> Manifest:
    """A node as GKE makes it for a TPU machine."""
    config: Any = pool.manifest["config"]
    machine = config["machine_type"]
    facts = next(each for each in table().values() if any(m["type"] == machine for m in each["machines"]))
    chips = next(m["chips"] for m in facts["machines"] if m["type"] == machine)
    placed = (pool.manifest.get("placement_policy") or {}).get("tpu_topology")
    topology = placed or next(each for each in facts["topologies"] if chip_count(each) == chips * pool.nodes)
    taints = [{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}]
    taints += [{**each, "effect": _EFFECTS[each["effect"]]} for each in config.get("taints") or []]
    vcpus, memory_gb = _host(next(m for m in facts["machines"] if m["type"] == machine))
    amounts = {"cpu": str(vcpus), "memory": f"{memory_gb}G", "pods": "15", "google.com/tpu": str(chips)}
    marks = {
        **(config.get("labels") or {}),
        POOL: pool.name,
        "cloud.google.com/gke-tpu-accelerator": facts["gkeAccelerator"],
        "cloud.google.com/gke-tpu-topology": topology,
        "topology.kubernetes.io/zone": pool.zone,
    }
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "pretended",
             "lastHeartbeatTime": timestamp(), "lastTransitionTime": timestamp()}  # fmt: skip
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"gke-{pool.name}-{index}", "labels": marks},
        "spec": {"taints": [{key: each[key] for key in ("key", "value", "effect")} for each in taints]},
        "status": {"capacity": amounts, "allocatable": dict(amounts), "conditions": [ready]},
    }


def _host(machine: Machine) -> tuple[int, int]:
    """What is left for pods after a tenth for GKE, as on the smallest machines; some size, where none is known."""
    return machine["vcpus"] or 200, (machine["memoryGb"] or 400) * 9 // 10


def _running() -> Manifest:
    now = timestamp()
    state = {"running": {"startedAt": now}}
    return {"phase": "Running", "startTime": now, "containerStatuses": [_container(state, True)]}


def _ended(phase: str, code: int, reason: str) -> Manifest:
    """A pod is over before it is gone: without that, Kubernetes' Job controller waits for it for ever."""
    now = timestamp()
    state = {"terminated": {"exitCode": code, "reason": reason, "startedAt": now, "finishedAt": now}}
    return {"phase": phase, "containerStatuses": [_container(state, False)]}


def _container(state: Manifest, is_ready: bool) -> Manifest:
    return {"name": "trainer", "image": "trainer", "imageID": "", "ready": is_ready, "restartCount": 0, "state": state}
