"""The Node object of this machine: its capacity, and the heartbeat that keeps it Ready."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

import psutil

from ptkube import timestamps
from ptkube.client import AlreadyExists, Kube, NotFound
from ptkube.resources import LEASES, NAMESPACES, NODES, Manifest
from ptkube.timestamps import timestamp
from ptlocal.kubelet.pod_status import ADDRESS

HEARTBEAT_S = 20.0  # a Lease of 40 s; the node controller of a real cluster gives up after 50
_LEASE_NAMESPACE = "kube-node-lease"
_LEASE_S = 40
_NOT_READY = "node.kubernetes.io/not-ready"


@dataclass(frozen=True)
class Capacity:
    """Total requests of pods that fit. Requests are counted; actual use is not limited."""

    cpu: str
    memory: str
    pods: int = 110

    @classmethod
    def of_this_machine(cls) -> Capacity:
        """Return the CPUs and memory of this machine."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return cls(cpu=str(cores), memory=f"{psutil.virtual_memory().total // 1024}Ki")


def node_manifest(name: str, capacity: Capacity, log_port: int | None) -> Manifest:
    """Return the Node object."""
    amounts = {"cpu": capacity.cpu, "memory": capacity.memory, "pods": str(capacity.pods)}
    arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": platform.system().lower(),
                "kubernetes.io/arch": arch,
                "node.kubernetes.io/instance-type": "posttrain-local",
            },
        },
        "spec": {},
        "status": {
            "capacity": amounts,
            "allocatable": dict(amounts),
            **({"daemonEndpoints": {"kubeletEndpoint": {"Port": log_port}}} if log_port else {}),
            # no Hostname: the API server would try to resolve it for logs
            "addresses": [{"type": "InternalIP", "address": ADDRESS}],
            "nodeInfo": {
                "machineID": "",
                "systemUUID": "",
                "bootID": "",
                "kernelVersion": platform.release(),
                "osImage": platform.platform(terse=True),
                "containerRuntimeVersion": "posttrain-local://processes",
                "kubeletVersion": "posttrain-local",
                "kubeProxyVersion": "",
                "operatingSystem": platform.system().lower(),
                "architecture": arch,
            },
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "message": "pods run as local processes",
                    "lastHeartbeatTime": timestamp(),
                    "lastTransitionTime": timestamp(),
                }
            ],
        },
    }


def register(kube: Kube, node: Manifest) -> Manifest:
    """Create the Node or update that of an earlier run; return it as stored."""
    name = node["metadata"]["name"]
    try:
        live = kube.create(NODES, node)
    except AlreadyExists:
        live = kube.patch(NODES, name, None, {"metadata": {"labels": node["metadata"]["labels"]}})
    taints = live["spec"].get("taints") or []
    if any(taint["key"] == _NOT_READY for taint in taints):
        # a real API server taints new nodes, and without a node controller nothing removes the taint
        kept = [taint for taint in taints if taint["key"] != _NOT_READY]
        kube.patch(NODES, name, None, {"spec": {"taints": kept or None}})
    return kube.patch(NODES, name, None, {"status": node["status"]}, subresource="status")


def renew_lease(kube: Kube, name: str) -> None:
    """Renew the node's Lease, its heartbeat."""
    spec = {
        "holderIdentity": name,
        "leaseDurationSeconds": _LEASE_S,
        "renewTime": timestamps.to_micro_text(timestamps.utc_now()),
    }
    try:
        kube.patch(LEASES, name, _LEASE_NAMESPACE, {"spec": spec})
    except NotFound:
        _create_lease(kube, name, spec)


def _create_lease(kube: Kube, name: str, spec: Manifest) -> None:
    lease = {"metadata": {"name": name, "namespace": _LEASE_NAMESPACE}, "spec": spec}
    try:
        kube.create(NAMESPACES, {"metadata": {"name": _LEASE_NAMESPACE}})
    except AlreadyExists:
        pass  # as on every real cluster
    kube.create(LEASES, lease)
