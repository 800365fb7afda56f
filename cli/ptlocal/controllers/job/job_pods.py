"""Pods of a Job: build one, and read the state of one."""

import copy

from ptkube.objects import container_statuses, holds, is_deleting, pod_phase
from ptkube.resources import JOBS, Manifest

FINALIZER = "batch.kubernetes.io/job-tracking"  # keeps a finished pod until it is counted
INDEX = "batch.kubernetes.io/job-completion-index"
CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
JOB_NAME = "batch.kubernetes.io/job-name"
_NO_INDEX = -1


def build_pod(job: Manifest, index: int | None) -> Manifest:
    """Return the pod of one completion index, or of none for a NonIndexed Job."""
    meta, template = job["metadata"], job["spec"]["template"]
    pod_meta = template.get("metadata") or {}
    labels = {
        **(pod_meta.get("labels") or {}),
        CONTROLLER_UID: meta["uid"],
        "controller-uid": meta["uid"],
        JOB_NAME: meta["name"],
        "job-name": meta["name"],
    }
    annotations = dict(pod_meta.get("annotations") or {})
    spec = copy.deepcopy(template["spec"])
    prefix = f"{meta['name']}-"
    if index is not None:
        labels[INDEX] = annotations[INDEX] = str(index)
        prefix += f"{index}-"
        spec["hostname"] = f"{meta['name']}-{index}"
        for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
            _add_index_env(container)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": prefix,
            "namespace": meta["namespace"],
            "labels": labels,
            "annotations": annotations,
            "finalizers": [FINALIZER],
            "ownerReferences": [
                {
                    "apiVersion": JOBS.api_version,
                    "kind": JOBS.kind,
                    "name": meta["name"],
                    "uid": meta["uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": spec,
    }


def _add_index_env(container: Manifest) -> None:
    env = container.setdefault("env", [])
    if not any(entry["name"] == "JOB_COMPLETION_INDEX" for entry in env):
        source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
        env.append({"name": "JOB_COMPLETION_INDEX", "valueFrom": source})


def index_of(pod: Manifest) -> int:
    """Return the completion index, or -1 for a pod without one."""
    text = (pod["metadata"].get("annotations") or {}).get(INDEX)
    return int(text) if text is not None and text.isdigit() else _NO_INDEX


def is_tracked(pod: Manifest) -> bool:
    """Return True if the pod has the Job controller's finalizer."""
    return FINALIZER in (pod["metadata"].get("finalizers") or [])


def is_terminal(pod: Manifest) -> bool:
    """Return True if the pod has succeeded or failed."""
    return pod_phase(pod) in ("Succeeded", "Failed")


def is_active(pod: Manifest) -> bool:
    """Return True if the pod is neither finished nor being deleted."""
    return not is_terminal(pod) and not is_deleting(pod)


def is_ready(pod: Manifest) -> bool:
    """Return True if the pod is Ready."""
    return holds(pod, "Ready")


def finished_at(pod: Manifest) -> str | None:
    """Return when the last container of the pod ended, as far as known."""
    times = [(s.get("state") or {}).get("terminated", {}).get("finishedAt") for s in container_statuses(pod)]
    times_known = [str(t) for t in (*times, pod["metadata"].get("deletionTimestamp")) if t]
    return max(times_known, default=None)


def without_finalizer(pod: Manifest) -> Manifest:
    """Return the merge patch that removes our finalizer; with the version, so that no other finalizer is lost."""
    meta = pod["metadata"]
    rest = [name for name in meta.get("finalizers") or [] if name != FINALIZER]
    return {"metadata": {"finalizers": rest or None, "resourceVersion": meta["resourceVersion"]}}
