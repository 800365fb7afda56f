"""Which amount a container exceeded, and the field of the job that raises it. Pure.

Kubernetes says that a container was OOMKilled, or in words which storage it filled; the pod's spec has the limit.
"""

from ptkube.resources import Manifest
from ptoperator.kube import names

_FIELDS = {
    names.PREFLIGHT: "preflight",
    names.STAGE: "stage",
    "pathways-rm": "pathwaysResourceManager",
    "pathways-proxy": "pathwaysProxy",
    "pathways-worker": "pathwaysWorker",
    "colocated-python-sidecar": "colocatedPython",
}


def out_of_memory(pod: Manifest, container: str) -> str:
    """Return why the kernel ended a container: its own limit, or its node's memory."""
    resources, field = _resources(pod, container), _field(container)
    limit = (resources.get("limits") or {}).get("memory")
    if limit:
        return f"container {container} used more than its memory limit of {limit} ({field}.limits.memory; OOMKilled)"
    request = (resources.get("requests") or {}).get("memory")
    requested = f"{field}.requests.memory is {request}" if request else f"{field}.requests.memory is unset"
    return f"the host is out of memory: container {container} has no limit, {requested} (OOMKilled)"


def evicted(pod: Manifest) -> str:
    """Return the kubelet's words for a pod over its storage limits, with the field; empty if it was not."""
    status = pod.get("status") or {}
    message = str(status.get("message") or "").strip().rstrip(".")
    if status.get("reason") != "Evicted" or "limit" not in message:
        return ""
    container = next((each for each in _containers(pod) if f"Container {each['name']} " in message), None)
    name = str(container["name"]) if container else names.CONTAINER
    return f"Evicted: {message} ({_field(name)}.limits.ephemeral-storage)"


def _resources(pod: Manifest, container: str) -> Manifest:
    named = next((each for each in _containers(pod) if each["name"] == container), {})
    return named.get("resources") or {}


def _containers(pod: Manifest) -> list[Manifest]:
    spec = pod.get("spec") or {}
    return [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]


def _field(container: str) -> str:
    """Return the field of a container's resources."""
    if container.partition("-")[0] == names.CONTAINER:
        return "spec.resources.trainer"
    role = _FIELDS.get(container)
    return f"spec.resources.{role}" if role else f"resources of {container} in spec.pod.initContainers"
