"""Classify why a node's pods failed. Pure, table-driven.

A pod only knows that it was stopped. The node tells whether the machine was preempted, under maintenance or broken:
GKE's taint and labels around a TPU's disruption, and the conditions that the kubelet and the node controller set. Names
as in Google's "Manage GKE node disruption for GPUs and TPUs"; never observed on a live cluster by us.
"""

from dataclasses import dataclass

from ptapi.failures import FailureClass
from ptkube.resources import Manifest

SPOT_LABELS = ("cloud.google.com/gke-spot", "cloud.google.com/gke-preemptible")
"""A VM that Google may take at any time."""
MAINTENANCE_LABEL = "cloud.google.com/active-node-maintenance"
"""`true` while the host under the node is maintained."""
TERMINATION_TAINT = "cloud.google.com/impending-node-termination"
"""Set when Google has announced that the VM will be stopped."""

_TAINTS: tuple[tuple[str, FailureClass, str], ...] = (
    ("ToBeDeletedByClusterAutoscaler", FailureClass.MAINTENANCE, "the cluster autoscaler is removing it"),
    ("node.kubernetes.io/out-of-service", FailureClass.HOST_ERROR, "it is out of service"),
    ("node.kubernetes.io/unreachable", FailureClass.HOST_ERROR, "it cannot be reached"),
    ("node.kubernetes.io/not-ready", FailureClass.HOST_ERROR, "it is not ready"),
    ("node.kubernetes.io/unschedulable", FailureClass.MAINTENANCE, "it is being drained"),
)
"""Looked at in this order, after the signs of Google's own disruptions."""
_STOPPED = "node.cloudprovider.kubernetes.io/shutdown"
_PROBLEMS = ("KernelDeadlock", "ReadonlyFilesystem", "FrequentKubeletRestart", "FrequentContainerdRestart", "TPUError")
"""Conditions of the node problem detector that mean a broken host while they are True."""


@dataclass(frozen=True)
class NodeFailureHint:
    """What happened to a node. message: `node gke-x: it is not ready (NodeStatusUnknown: Kubelet stopped posting)`."""

    kind: FailureClass
    message: str


def node_failure_hint(node: Manifest) -> NodeFailureHint | None:
    """Return why pods of this node fail; None for a healthy node."""
    name, marks = str(node["metadata"]["name"]), node["metadata"].get("labels") or {}
    taints = {str(taint.get("key")) for taint in (node.get("spec") or {}).get("taints") or []}
    sign = _google(marks, taints) or _broken(node) or _tainted(taints)
    return NodeFailureHint(sign[0], f"node {name}: {sign[1]}") if sign else None


def gone(name: str, is_spot: bool) -> NodeFailureHint:
    """Return the hint for a node that no longer exists. is_spot: Google may take the job's chips at any time."""
    if is_spot:
        return NodeFailureHint(FailureClass.PREEMPTED, f"spot node {name} is gone")
    return NodeFailureHint(FailureClass.HOST_ERROR, f"node {name} is gone")


def _google(marks: Manifest, taints: set[str]) -> tuple[FailureClass, str] | None:
    is_spot = any(marks.get(label) == "true" for label in SPOT_LABELS)
    if marks.get(MAINTENANCE_LABEL) == "true":
        return FailureClass.MAINTENANCE, "its host is under maintenance"
    if TERMINATION_TAINT in taints or _STOPPED in taints:
        message = "Google is stopping the VM" if TERMINATION_TAINT in taints else "its VM was stopped"
        return (FailureClass.PREEMPTED, f"{message} (spot)") if is_spot else (FailureClass.MAINTENANCE, message)
    return None


def _broken(node: Manifest) -> tuple[FailureClass, str] | None:
    for each in (node.get("status") or {}).get("conditions") or []:
        is_down = each.get("type") == "Ready" and each.get("status") != "True"
        if is_down or (each.get("type") in _PROBLEMS and each.get("status") == "True"):
            what = "it is not ready" if is_down else str(each["type"])
            details = ": ".join(filter(None, (str(each.get("reason") or ""), str(each.get("message") or ""))))
            return FailureClass.HOST_ERROR, f"{what} ({details})" if details else what
    return None


def _tainted(taints: set[str]) -> tuple[FailureClass, str] | None:
    return next(((kind, message) for key, kind, message in _TAINTS if key in taints), None)
