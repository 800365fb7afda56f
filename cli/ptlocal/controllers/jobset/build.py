"""Build the objects that a JobSet owns: its child Jobs and its headless Service."""

import copy

from ptkube.resources import JOBSETS, Manifest
from ptlocal import jobset_names


def child_job(jobset: Manifest, replicated: Manifest, index: int) -> Manifest:
    """Return the child Job of one replica."""
    meta = jobset["metadata"]
    template = replicated["template"]
    stamp = _stamp(jobset, replicated, index)
    exclusive = _exclusive_topology(jobset, replicated)
    spec = copy.deepcopy(template["spec"])
    spec["suspend"] = bool(jobset["spec"].get("suspend"))
    pod = spec["template"]
    pod["metadata"] = _labelled(pod.get("metadata"), stamp, exclusive)
    if jobset["spec"]["network"]["enableDNSHostnames"]:
        pod["spec"]["subdomain"] = jobset_names.subdomain(jobset)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": jobset_names.job_name(meta["name"], replicated["name"], index),
            "namespace": meta["namespace"],
            **_labelled(template.get("metadata"), stamp, exclusive),
            "ownerReferences": [owner_reference(jobset)],
        },
        "spec": spec,
    }


def headless_service(jobset: Manifest) -> Manifest:
    """Return the headless Service that gives the pods their host names."""
    meta = jobset["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": jobset_names.subdomain(jobset),
            "namespace": meta["namespace"],
            "ownerReferences": [owner_reference(jobset)],
        },
        "spec": {
            "clusterIP": "None",
            "selector": {jobset_names.NAME: meta["name"]},
            "publishNotReadyAddresses": jobset["spec"]["network"]["publishNotReadyAddresses"],
        },
    }


def owner_reference(jobset: Manifest) -> Manifest:
    """Return the owner reference to the JobSet."""
    return {
        "apiVersion": JOBSETS.api_version,
        "kind": JOBSETS.kind,
        "name": jobset["metadata"]["name"],
        "uid": jobset["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _stamp(jobset: Manifest, replicated: Manifest, index: int) -> dict[str, str]:
    """Return the values that JobSet writes both as labels and as annotations, on Job and pod template."""
    meta, jobs = jobset["metadata"], jobset["spec"]["replicatedJobs"]
    position = jobs.index(replicated)
    group = [job for job in jobs if job["groupName"] == replicated["groupName"]]
    name = jobset_names.job_name(meta["name"], replicated["name"], index)
    stamp = {
        jobset_names.NAME: meta["name"],
        jobset_names.UID: meta["uid"],
        jobset_names.REPLICATED_JOB: replicated["name"],
        jobset_names.RESTART_ATTEMPT: str(jobset["status"]["restarts"]),
        jobset_names.REPLICAS: str(replicated["replicas"]),
        jobset_names.GLOBAL_REPLICAS: str(_total(jobs)),
        jobset_names.JOB_INDEX: str(index),
        jobset_names.JOB_KEY: jobset_names.job_key(meta["namespace"], name),
        jobset_names.JOB_GLOBAL_INDEX: str(_total(jobs[:position]) + index),
        jobset_names.GROUP_NAME: replicated["groupName"],
        jobset_names.GROUP_REPLICAS: str(_total(group)),
        jobset_names.JOB_GROUP_INDEX: str(_total(group[: group.index(replicated)]) + index),
    }
    coordinator = jobset_names.coordinator(jobset)
    if coordinator:
        stamp[jobset_names.COORDINATOR] = coordinator
    return stamp


def _exclusive_topology(jobset: Manifest, replicated: Manifest) -> str | None:
    for meta in (replicated["template"].get("metadata") or {}, jobset["metadata"]):
        value = (meta.get("annotations") or {}).get(jobset_names.EXCLUSIVE_TOPOLOGY)
        if value:
            return str(value)
    return None


def _labelled(meta: Manifest | None, stamp: dict[str, str], exclusive: str | None) -> Manifest:
    meta = meta or {}
    annotations = {**(meta.get("annotations") or {}), **stamp}
    if exclusive:
        annotations[jobset_names.EXCLUSIVE_TOPOLOGY] = exclusive
    return {"labels": {**(meta.get("labels") or {}), **stamp}, "annotations": annotations}


def _total(jobs: list[Manifest]) -> int:
    return sum(int(job["replicas"]) for job in jobs)
