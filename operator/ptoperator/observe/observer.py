"""Gathers what is known of one job: the only reads of a reconcile.

A full look costs one GET of the job, one of its JobSet, one LIST of its pods, a GET of the ConfigMap while pods start,
of the nodes on which pods failed, and of preflight's Job until that is decided. Between two looks, while nothing was
heard of the job, only its progress (a document, or MaxText's log) is read again. The cloud is asked only about a job
that obtains node pools, waits for their nodes, or gives them back; so is the API server about a ProvisioningRequest.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

from ptapi.errors import SpecError
from ptapi.hang_timeout import limit_s
from ptapi.load import parse_job
from ptapi.run_directory import Progress
from ptkube import timestamps
from ptkube.errors import Forbidden, NotFound
from ptkube.resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    JOBS,
    JOBSETS,
    POD_TEMPLATES,
    PODS,
    POSTTRAINJOBS,
    PROVISIONING_REQUESTS,
    SERVICES,
    Manifest,
    Resource,
)
from ptoperator.capacity import open_attempt, uses_pools
from ptoperator.capacity.attempts import may_use_queued_provisioning, reservation_of
from ptoperator.capacity.cloud import CloudProvider
from ptoperator.capacity.provisioning_state import NO_REQUEST, ProvisioningRequestState
from ptoperator.failures.pod_failures import PodFailure
from ptoperator.kube import labels, names
from ptoperator.kueue import workload
from ptoperator.kueue.workload import KueueState
from ptoperator.observe import run_directory
from ptoperator.observe.cache import JobCache, Key
from ptoperator.observe.failed_nodes import inspect_failed_nodes
from ptoperator.observe.maxtext_progress import LogReader, with_log
from ptoperator.observe.state import Observed, TensorBoardObjects, is_scheduled, is_started
from ptoperator.render import Layout, layout_of
from ptoperator.render.pod import pools_of
from ptoperator.render.tensorboard import route_kind, tensorboard_host, tensorboard_name
from ptoperator.settings import Settings

logger = logging.getLogger(__name__)


class Reader(LogReader, workload.Reader, Protocol):
    """The part of `kube.Kube` that observing needs."""

    def get(self, r: Resource, name: str, namespace: str | None = None, /) -> Manifest: ...
    def list(self, r: Resource, namespace: str | None = None, /, *, labels: str | None = None) -> Any: ...


def observe(
    reader: Reader, cache: JobCache, key: Key, settings: Settings, now: datetime, cloud: CloudProvider | None = None
) -> Observed | None:
    """Everything about the job now; None if it is gone."""
    namespace, name = key
    job = _get(reader, POSTTRAINJOBS, name, namespace)
    if job is None:
        return None
    cache.note_job(job)
    now = now.replace(microsecond=0)  # as times are written; sums of differences stay exact
    state = Observed(now=now, observed_at=now, job=job)
    if state.is_deleting and not state.has_finalizer:
        return state
    jobset_name = state.status.job_set or _jobset_name(job, settings)
    if jobset_name:
        state = replace(state, jobset=_get(reader, JOBSETS, jobset_name, namespace))
    if not jobset_name or (state.status.phase.is_terminal and not _needs_cloud(state)):
        return _with_cloud(reader, state, cloud)
    found = tuple(map(_trim, reader.list(PODS, namespace, labels=labels.selector(name)).items))
    pods = tuple(pod for pod in found if not labels.is_of_preflight(pod))
    for pod in found:
        cache.note_pod(pod)
    inspect_failed_nodes(reader, cache, state)
    state = replace(state, pods=pods, failures=_failures(cache, state), pull_errors=cache.pull_errors(state.uid))
    state = replace(state, run_directory_owner=cache.run_directory_owner(key))
    state = replace(state, kueue=_kueue(reader, state))
    state = replace(state, bound_jobs=_bound_jobs(reader, state))
    state = replace(state, config_map_missing=_is_config_map_missing(reader, state))
    if state.is_preflight_open and state.may_need_preflight:
        ours = tuple(pod for pod in found if labels.is_of_preflight(pod) and labels.is_of_job(pod, state.uid))
        made = _get(reader, JOBS, names.preflight(state.name, state.uid), namespace)
        state = replace(state, preflight_job=made, preflight_pods=ours)
    return _with_cloud(reader, with_log(reader, _with_run_directory(state)), cloud)


def observe_progress(reader: Reader, last: Observed, now: datetime, cloud: CloudProvider | None = None) -> Observed:
    """The last look, with what the run directory, and where it matters the cloud, says now."""
    state = _with_run_directory(replace(last, now=now.replace(microsecond=0)))
    return _with_cloud(reader, with_log(reader, state), cloud)


def observe_tensorboard(reader: Reader, state: Observed, layout: Layout) -> TensorBoardObjects:
    """The shared TensorBoard of a job's output."""
    name = tensorboard_name(layout.job.spec.output.uri)
    deployment = _get(reader, DEPLOYMENTS, name, state.namespace)
    if deployment is None:
        return TensorBoardObjects()
    is_reached = bool(tensorboard_host(layout))
    entry = _get(reader, route_kind(layout), name, state.namespace) if is_reached else None
    return TensorBoardObjects(deployment, _get(reader, SERVICES, name, state.namespace), entry)


def _with_cloud(reader: Reader, state: Observed, cloud: CloudProvider | None) -> Observed:
    if cloud is None or not _needs_cloud(state):
        return state
    found = cloud.look(state.uid)
    attempt = open_attempt(state.status.capacity) if state.jobset is None or state.is_suspended_by_kueue else None
    reservation = reservation_of(state.job, attempt) if attempt else None
    if attempt is not None and reservation:
        found = replace(found, reservation=cloud.reservation(reservation, attempt.zone))
    return replace(state, cloud=found, provisioning=_provisioning(reader, state))


def _provisioning(reader: Reader, state: Observed) -> ProvisioningRequestState:
    """Asked together with the cloud, of a job that may be queued by it."""
    if not may_use_queued_provisioning(state.job):
        return NO_REQUEST
    name = names.provisioning_request(state.name, state.uid)
    try:
        request = _get(reader, PROVISIONING_REQUESTS, name, state.namespace)
        return ProvisioningRequestState(request, _get(reader, POD_TEMPLATES, name, state.namespace))
    except Forbidden as error:  # an older chart's role: what follows is refused too, and told
        logger.debug("ProvisioningRequests cannot be read: %s", error)
        return NO_REQUEST


def _needs_cloud(state: Observed) -> bool:
    """Whether node pools are made, waited for or given back now."""
    if state.is_deleting:
        return state.has_finalizer
    if not uses_pools(state.job):
        return False
    capacity = state.status.capacity
    is_without_quota = state.is_suspended_by_kueue and not (state.kueue and state.kueue.has_quota)
    if state.status.phase.is_terminal or is_without_quota:
        return bool(capacity.node_pools) or open_attempt(capacity) is not None
    is_waiting = not state.current_pods or not all(map(is_scheduled, state.current_pods))
    return state.jobset is None or is_waiting


def _with_run_directory(state: Observed) -> Observed:
    """Read only what may have been written: progress once pods ran, the termination once something failed."""
    run = run_directory.of_job(state.job)
    has_run = any(map(is_started, state.current_pods)) or state.status.start_time is not None
    if not run or not has_run or state.status.phase.is_terminal:
        return state
    known = sum(state.status.restarts.values())
    has_failed = state.jobset_condition("Failed") or state.restarts > known
    progress = run_directory.read_progress(run)
    return replace(
        state,
        progress=progress,
        heartbeats=run_directory.read_heartbeats(run) if _is_silent(state, progress) else (),
        termination=run_directory.read_termination(run) if has_failed else None,
    )


def _kueue(reader: Reader, state: Observed) -> KueueState | None:
    """Asked while Kueue holds the JobSet back, or seems to have let it run without asking for node pools."""
    if state.jobset is None or not state.jobset_queue or not state.is_jobset_ours:
        return None
    is_unasked = uses_pools(state.job) and open_attempt(state.status.capacity) is None
    if not (state.is_suspended_by_kueue or is_unasked):
        return None
    try:
        return workload.look(reader, state.namespace, state.jobset_queue, str(state.jobset["metadata"]["uid"]))
    except Forbidden as error:  # an older chart's role
        logger.debug("Kueue cannot be asked: %s", error)
        return None


def _bound_jobs(reader: Reader, state: Observed) -> tuple[Manifest, ...]:
    """Asked while Kueue asks for node pools. A JobSet that runs again adds to the selectors and tolerations of the Jobs
    that it has; it takes nothing away."""
    if state.kueue is None or not state.kueue.is_asking or state.jobset is None or not uses_pools(state.job):
        return ()
    selector = f"{labels.JOBSET_NAME}={state.jobset['metadata']['name']}"
    children = reader.list(JOBS, state.namespace, labels=selector).items
    return tuple(child for child in children if pools_of(child["spec"]["template"]["spec"]))


def _failures(cache: JobCache, state: Observed) -> tuple[PodFailure, ...]:
    """Those under this JobSet: one that was made anew counts its attempts from 0 again."""
    made = str(state.jobset["metadata"].get("creationTimestamp") or "") if state.jobset else ""
    return tuple(each for each in cache.failures(state.uid) if not each.time or each.time >= made)


def _is_silent(state: Observed, progress: Progress | None) -> bool:
    """Whether the run says nothing for so long that it is worth asking which process stays behind."""
    if progress is None:
        return False
    asked = ((state.job.get("spec") or {}).get("runPolicy") or {}).get("hangTimeoutSeconds")
    age = timestamps.seconds_since(progress.updated, state.now)
    return age is not None and age > limit_s(progress.stage, progress.seconds_per_step, asked)


def _is_config_map_missing(reader: Reader, state: Observed) -> bool:
    """Asked while pods may still have to mount it."""
    if state.jobset is None or not state.is_jobset_ours or all(map(is_started, state.current_pods or [{}])):
        return False
    return _get(reader, CONFIGMAPS, names.config_map(state.name, state.uid), state.namespace) is None


def _trim(pod: Manifest) -> Manifest:
    """The parts of a pod that are asked for: a slice may have thousands, and the last look is kept."""
    meta, spec = pod["metadata"], pod.get("spec") or {}
    kept = {key: meta[key] for key in ("name", "uid", "labels", "deletionTimestamp") if key in meta}
    return {"metadata": kept, "spec": {"nodeName": spec.get("nodeName")}, "status": pod.get("status") or {}}


def _jobset_name(job: Manifest, settings: Settings) -> str:
    try:
        return layout_of(parse_job(job), settings).jobset
    except SpecError:
        return ""  # plan says why


def _get(reader: Reader, resource: Resource, name: str, namespace: str) -> Manifest | None:
    try:
        return reader.get(resource, name, namespace)
    except NotFound:
        return None
