"""Find out why pods that a job waits for are not created. `failures.pod_creation` classifies the reason.

Two LISTs, and only while pods have been missing for longer than a controller takes to create them.
"""

from ptapi.conditions import ConditionType
from ptkube.errors import Forbidden
from ptkube.objects import holds, is_deleting
from ptkube.resources import EVENTS, JOBS, JOBSETS, Manifest
from ptoperator.failures.pod_creation import REASONS, creation_failure
from ptoperator.failures.pod_failures import StartFailure
from ptoperator.kube import labels
from ptoperator.kube.audited_client import KubeReader
from ptoperator.observe.state import Observed


def why_pods_are_missing(reader: KubeReader, state: Observed) -> StartFailure | None:
    """Return what the API server refuses the controller of missing pods, or None."""
    controller = _controller(reader, state)
    if controller is None:
        return None
    kind, owner = controller
    fields = f"involvedObject.uid={owner['metadata']['uid']},reason={REASONS[kind]}"
    try:
        events = reader.list(EVENTS, state.job.namespace, fields=fields).items
    except Forbidden:  # an older chart's role
        return None
    return creation_failure(f"{kind} {owner['metadata']['name']}", events, _missing_since(state, owner))


def _controller(reader: KubeReader, state: Observed) -> tuple[str, Manifest] | None:
    """Return the kind and object whose controller should have created pods by now; None if no pod is missing."""
    preflight, jobset = state.preflight_job, state.jobset
    if preflight is not None and not state.preflight_pods and not is_deleting(preflight):
        return None if holds(preflight, "Complete") or holds(preflight, "Failed") else (JOBS.kind, preflight)
    if jobset is None or not state.has_missing_pods or state.is_jobset_young:
        return None
    selector = f"{labels.JOBSET_NAME}={jobset['metadata']['name']}"
    jobs = reader.list(JOBS, state.job.namespace, labels=selector).items
    if len(jobs) < sum(int(each.get("replicas") or 1) for each in jobset["spec"]["replicatedJobs"]):
        return JOBSETS.kind, jobset
    return next(((JOBS.kind, job) for job in jobs if _lacks_pods(job)), None)


def _lacks_pods(job: Manifest) -> bool:
    status = job.get("status") or {}
    pods = sum(int(status.get(state) or 0) for state in ("active", "succeeded", "failed", "terminating"))
    return pods < int(job["spec"].get("parallelism") or 1)


def _missing_since(state: Observed, owner: Manifest) -> str:
    """Return since when pods are missing: a restarted JobSet still has the events of earlier attempts."""
    capacity = state.status.condition(ConditionType.CAPACITY_READY)
    lost = capacity.last_transition_time if capacity and capacity.status != "True" else ""
    return max(lost, str(owner["metadata"].get("creationTimestamp") or ""))
