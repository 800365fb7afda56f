"""Find out from events why pods that a job waits for are not created, or do not start although they have a node.

`failures.pod_creation` and `failures.volume_mounts` classify the reason. Two LISTs, and only while pods have been
missing for longer than a controller takes to create them; one for a pod that starts late. When that ends the job, its
init containers' log is read, which goes with the pod.
"""

import logging
from dataclasses import replace

from ptapi.conditions import ConditionType
from ptkube import timestamps
from ptkube.errors import ApiError, Forbidden
from ptkube.objects import holds, is_deleting, true_condition
from ptkube.resources import EVENTS, JOBS, JOBSETS, Manifest
from ptoperator.failures import volume_mounts
from ptoperator.failures.log_excerpt import log_tail
from ptoperator.failures.pod_creation import REASONS, creation_failure
from ptoperator.failures.pod_failures import StartFailure
from ptoperator.kube import labels
from ptoperator.kube.audited_client import KubeReader
from ptoperator.observe.state import Observed, is_started
from ptoperator.settings import Settings

logger = logging.getLogger(__name__)

LATE_START_S = 10.0
"""The kubelet mounts what is there in less."""
_TAIL_LINES = 50


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


def why_a_pod_does_not_start(reader: KubeReader, state: Observed) -> StartFailure | None:
    """Return what the kubelet does not find for a pod that has had its node for a while, or None."""
    pod = next((pod for pod in state.current_pods if not is_started(pod) and _starts_late(pod, state)), None)
    if pod is None:
        return None
    fields = f"involvedObject.uid={pod['metadata']['uid']},reason={volume_mounts.REASON}"
    try:
        events = reader.list(EVENTS, state.job.namespace, fields=fields).items
    except Forbidden:  # an older chart's role
        return None
    return volume_mounts.mount_failure(pod, events)


def with_start_log(reader: KubeReader, state: Observed, settings: Settings) -> Observed:
    """Add what init containers printed, if their pod could not start for so long that the job ends."""
    failure = state.final_start_failure(settings.start_failure_seconds)
    pod = next((pod for pod in state.current_pods if failure and pod["metadata"]["name"] == failure.pod), None)
    if pod is None:
        return state
    return replace(state, start_log=log_tail("\n".join(_printed(reader, pod))))


def _starts_late(pod: Manifest, state: Observed) -> bool:
    scheduled = true_condition(pod, "PodScheduled") or {}
    age = timestamps.seconds_since(str(scheduled.get("lastTransitionTime") or ""), state.now)
    return age is not None and age >= LATE_START_S


def _controller(reader: KubeReader, state: Observed) -> tuple[str, Manifest] | None:
    """Return the kind and object whose controller should have created pods by now; None if no pod is missing."""
    preflight, jobset = state.preflight.job, state.jobset
    if preflight is not None and not state.preflight.pods and not is_deleting(preflight):
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


def _printed(reader: KubeReader, pod: Manifest) -> list[str]:
    lines: list[str] = []
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    try:
        for container in _ended(pod):
            lines += reader.pod_logs(name, namespace, container=container, tail=_TAIL_LINES, timestamps=False)
    except ApiError as error:
        logger.debug("a log of %s cannot be read: %s", name, error)
    return lines


def _ended(pod: Manifest) -> list[str]:
    """Return the init containers that are done."""
    statuses = (pod.get("status") or {}).get("initContainerStatuses") or []
    return [each["name"] for each in statuses if (each.get("state") or {}).get("terminated")]
