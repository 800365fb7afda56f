"""Bind pods to nodes that have room: a minimal scheduler that reports why a pod is pending.

Pending pods are tried in the order of their creation, again whenever a pod ends or a node changes.
"""

from ptkube.client import Conflict, Kube, NotFound
from ptkube.events import EventRecorder
from ptkube.informer import Informer
from ptkube.objects import is_deleting
from ptkube.resources import PODS, Manifest
from ptkube.timestamps import timestamp
from ptkube.workqueue import WorkQueue
from ptlocal.controllers.node_fit import choose_node

_NAME = "default-scheduler"
_ROUND = "round"


class Scheduler:
    """Binds pending pods."""

    def __init__(self, kube: Kube, pods: Informer, nodes: Informer) -> None:
        self.queue: WorkQueue[str] = WorkQueue("scheduler", lambda *_: self._round())
        self._kube = kube
        self._pods = pods
        self._nodes = nodes
        self._events = EventRecorder(kube, _NAME)
        pods.listen(lambda kind, pod: self._wake() if _is_relevant(kind, pod) else None)
        nodes.listen(lambda _, __: self._wake())

    def _wake(self) -> None:
        self.queue.add(_ROUND)

    def _round(self) -> None:
        everything = self._pods.items()
        waiting = [pod for pod in everything if _is_waiting(pod)]
        placed = [pod for pod in everything if pod["spec"].get("nodeName") and not _is_over(pod)]
        nodes = self._nodes.items()
        for pod in sorted(waiting, key=_age):
            node, message = choose_node(pod, nodes, placed)
            if node is None:
                self._explain(pod, message)
            elif self._bind(pod, node):
                placed.append({**pod, "spec": {**pod["spec"], "nodeName": node}})

    def _bind(self, pod: Manifest, node: str) -> bool:
        meta = pod["metadata"]
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
            "target": target,
        }
        try:
            self._kube.create(PODS, binding, name=meta["name"], subresource="binding")
        except (Conflict, NotFound):
            return False  # already bound or deleted; the watch will tell
        self._events.record(pod, "Normal", "Scheduled", f"Successfully assigned {_full_name(pod)} to {node}")
        return True

    def _explain(self, pod: Manifest, message: str) -> None:
        conditions = (pod.get("status") or {}).get("conditions") or []
        current: Manifest = next((c for c in conditions if c["type"] == "PodScheduled"), {})
        if current.get("status") == "False" and current.get("message") == message:
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastTransitionTime": current.get("lastTransitionTime") or timestamp(),
        }
        others = [c for c in conditions if c["type"] != "PodScheduled"]
        meta = pod["metadata"]
        patch = {"status": {"phase": "Pending", "conditions": [*others, condition]}}
        self._pods.record(self._kube.patch(PODS, meta["name"], meta["namespace"], patch, subresource="status"))
        self._events.record(pod, "Warning", "FailedScheduling", message)


def _is_relevant(kind: str, pod: Manifest) -> bool:
    """Return True if the event is new work or may have freed room."""
    return kind == "DELETED" or _is_waiting(pod) or _is_over(pod)


def _is_waiting(pod: Manifest) -> bool:
    spec = pod["spec"]
    return (
        not spec.get("nodeName")
        and not spec.get("schedulingGates")
        and not is_deleting(pod)
        and not _is_over(pod)
        and (spec.get("schedulerName") or _NAME) == _NAME
    )


def _is_over(pod: Manifest) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _age(pod: Manifest) -> tuple[str, str]:
    return pod["metadata"].get("creationTimestamp") or "", pod["metadata"]["name"]


def _full_name(pod: Manifest) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
