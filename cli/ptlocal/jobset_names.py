"""Names, labels and annotations of JobSet's API (jobset.x-k8s.io/v1alpha2)."""

import hashlib

from ptkube.resources import Manifest

CONTROLLER = "jobset.sigs.k8s.io/jobset-controller"  # the built-in controller's spec.managedBy

NAME = "jobset.sigs.k8s.io/jobset-name"
UID = "jobset.sigs.k8s.io/jobset-uid"
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
REPLICAS = "jobset.sigs.k8s.io/replicatedjob-replicas"
GLOBAL_REPLICAS = "jobset.sigs.k8s.io/global-replicas"
JOB_INDEX = "jobset.sigs.k8s.io/job-index"
JOB_GLOBAL_INDEX = "jobset.sigs.k8s.io/job-global-index"
JOB_KEY = "jobset.sigs.k8s.io/job-key"
RESTART_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
COORDINATOR = "jobset.sigs.k8s.io/coordinator"
GROUP_NAME = "jobset.sigs.k8s.io/group-name"
GROUP_REPLICAS = "jobset.sigs.k8s.io/group-replicas"
JOB_GROUP_INDEX = "jobset.sigs.k8s.io/job-group-index"
EXCLUSIVE_TOPOLOGY = "alpha.jobset.sigs.k8s.io/exclusive-topology"

DEFAULT_GROUP = "default"


def job_name(jobset: str, replicated_job: str, index: int) -> str:
    """Return the name of a child Job."""
    return f"{jobset}-{replicated_job}-{index}"


def job_key(namespace: str, name: str) -> str:
    """Return a hash of the Job's name that is stable over restarts and fits a label."""
    return hashlib.sha1(f"{namespace}/{name}".encode(), usedforsecurity=False).hexdigest()


def subdomain(jobset: Manifest) -> str:
    """Return the headless Service's name; pods are `<jobset>-<replicatedJob>-<job>-<pod>.<subdomain>`."""
    return str(jobset["spec"]["network"].get("subdomain") or jobset["metadata"]["name"])


def coordinator(jobset: Manifest) -> str | None:
    """Return the coordinator pod's host name, if the JobSet configures one."""
    spec = jobset["spec"].get("coordinator")
    if not spec:
        return None
    name = job_name(jobset["metadata"]["name"], spec["replicatedJob"], int(spec.get("jobIndex") or 0))
    return f"{name}-{int(spec.get('podIndex') or 0)}.{subdomain(jobset)}"
