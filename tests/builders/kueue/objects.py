"""Kueue's objects as its controller writes them (kueue.x-k8s.io/v1beta2 at 0.19): what a test says in Kueue's place."""

from typing import Any

Manifest = dict[str, Any]

TIME = "2026-11-21T10:00:00Z"


def local_queue(name: str, namespace: str, cluster_queue: str) -> Manifest:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "LocalQueue",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterQueue": cluster_queue},
    }


def workload(jobset: Manifest, queue: str, **status: Any) -> Manifest:
    """The Workload of a JobSet: a pod set for each of its replicated jobs."""
    meta = jobset["metadata"]
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": f"jobset-{meta['name']}-1a2b3",
            "namespace": meta["namespace"],
            "labels": {"kueue.x-k8s.io/job-uid": meta["uid"]},
        },
        "spec": {
            "active": True,
            "queueName": queue,
            "priority": 0,
            "podSets": [_pod_set(each) for each in jobset["spec"]["replicatedJobs"]],
        },
        "status": status,
    }


def condition(kind: str, holds: bool, reason: str, message: str) -> Manifest:
    return {
        "type": kind, "status": "True" if holds else "False", "reason": reason, "message": message,
        "lastTransitionTime": TIME,
    }  # fmt: skip


def pending(message: str) -> Manifest:
    """No quota yet."""
    return condition("QuotaReserved", False, "Pending", message)


def pending_workloads(*names: str) -> Manifest:
    """The visibility API's answer: names in the ClusterQueue's order."""
    items = [
        {"metadata": {"name": name}, "positionInClusterQueue": index, "positionInLocalQueue": index}
        for index, name in enumerate(names)
    ]
    return {"kind": "PendingWorkloadsSummary", "apiVersion": "visibility.kueue.x-k8s.io/v1beta2", "items": items}


def _pod_set(replicated: Manifest) -> Manifest:
    job = replicated["template"]["spec"]
    return {
        "name": replicated["name"],
        "count": replicated["replicas"] * job["parallelism"],
        "template": job["template"],
    }
