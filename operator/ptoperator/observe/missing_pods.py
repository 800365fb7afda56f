"""Find out from events why pods that a job waits for are not created, or do not start although they have a node.

`failures.pod_creation` and `failures.volume_mounts` classify the reason. Two LISTs, and only while pods have been
missing for longer than a controller takes to create them, and an event was heard of their owner or all is read anew;
one for a pod that starts late. When that ends the job, its init containers' log is read, which goes with the pod.
"""

import logging
from collections.abc import Iterator
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
from ptoperator.kube import labels, names
from ptoperator.kube.audited_client import KubeReader
from ptoperator.observe.state import Observed, is_scheduled, is_started
from ptoperator.observe.watch_caches import CachedReader
from ptoperator.settings import Settings

logger = logging.getLogger(__name__)

LATE_START_S = 10.0
"""The kubelet mounts what is there in less."""
_TAIL_LINES = 50
_SCALE_UP = "TriggeredScaleUp"
"""What Kubernetes' cluster autoscaler, GKE's included, says on a pod for which it adds nodes."""


def why_pods_are_missing(reader: CachedReader, state: Observed) -> StartFailure | None:
    """Return what the API server refuses the controller of missing pods, or None."""
    if not reader.may_be_refused(state.job.namespace, _owners(state)):
        return None
    controller = _controller(reader, state)
    if controller is None:
        return None
    kind, owner = controller
    events = _events(reader, owner, REASONS[kind])
    return creation_failure(f"{kind} {owner['metadata']['name']}", events, _missing_since(state, owner))


def why_a_pod_does_not_start(reader: KubeReader, state: Observed) -> StartFailure | None:
    """Return what the kubelet does not find for a pod that has had its node for a while, or None."""
    pod = next((pod for pod in state.current_pods if not is_started(pod) and _starts_late(pod, state)), None)
    if pod is None:
        return None
    return volume_mounts.mount_failure(pod, _events(reader, pod, volume_mounts.REASON))


def is_scaled_up(reader: KubeReader, state: Observed) -> bool:
    """Return True if a cluster autoscaler has begun to make nodes for a pod of a job whose turn has come."""
    pod = next((pod for pod in state.current_pods if not is_scheduled(pod)), None)
    if pod is None or not state.may_be_scaled_up:
        return False
    return bool(_events(reader, pod, _SCALE_UP))


def with_start_log(reader: KubeReader, state: Observed, settings: Settings) -> Observed:
    """Add what init containers printed, if their pod could not start for so long that the job ends."""
    failure = state.final_start_failure(settings.start_failure_seconds)
    pod = next((pod for pod in state.current_pods if failure and pod["metadata"]["name"] == failure.pod), None)
    if pod is None:
        return state
    return replace(state, start_log=log_tail("\n".join(_printed(reader, pod))))


def _events(reader: KubeReader, item: Manifest, reason: str) -> list[Manifest]:
    """Return the events of an object for a reason; none where an older chart's role does not let them be read."""
    meta = item["metadata"]
    fields = f"involvedObject.uid={meta['uid']},reason={reason}"
    try:
        events: list[Manifest] = reader.list(EVENTS, meta["namespace"], fields=fields).items
    except Forbidden:
        return []
    return events


def _starts_late(pod: Manifest, state: Observed) -> bool:
    scheduled = true_condition(pod, "PodScheduled") or {}
    age = timestamps.seconds_since(str(scheduled.get("lastTransitionTime") or ""), state.now)
    return age is not None and age >= LATE_START_S


def _owners(state: Observed) -> Iterator[str]:
    """Return the names of the objects whose controllers create pods of this job, directly or as Jobs."""
    yield names.stage(state.job.name, state.job.uid)
    yield names.preflight(state.job.name, state.job.uid)
    if state.jobset is not None:
        name = str(state.jobset["metadata"]["name"])
        yield name
        for each in state.jobset["spec"]["replicatedJobs"]:
            yield from (f"{name}-{each['name']}-{index}" for index in range(int(each.get("replicas") or 1)))


def _controller(reader: KubeReader, state: Observed) -> tuple[str, Manifest] | None:
    """Return the kind and object whose controller should have created pods by now; None if no pod is missing."""
    jobset = state.jobset
    for job, pods in ((state.staging.job, state.staging.pods), (state.preflight.job, state.preflight.pods)):
        if job is not None and not pods and not is_deleting(job):
            return None if holds(job, "Complete") or holds(job, "Failed") else (JOBS.kind, job)
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
