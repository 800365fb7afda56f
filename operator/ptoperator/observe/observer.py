"""Observe one job: the only reads of a reconcile.

The job, its JobSet and its pods come from local copies (`copies`), or are read anew where the reconciler says so. The
API server is asked for the ConfigMap while pods start, for the nodes on which pods failed, and for preflight's Job
until that is decided. While pods are missing and an event tells of it, two LISTs find out why (`missing_pods`).
Between two observations, while no event of the job arrives, only its progress (a document, or MaxText's log) is read
again. The cloud is read only for a job that obtains node pools, waits for their nodes, or releases them; so is the
ProvisioningRequest.
"""

import logging
from dataclasses import replace
from datetime import datetime

from ptapi.conditions import ConditionType, Phase, Reason
from ptapi.hang_timeout import limit_s
from ptapi.run_directory import Progress
from ptapi.spec import PostTrainJob
from ptapi.status import CapacityAttempt
from ptkube import timestamps
from ptkube.errors import Forbidden, NotFound
from ptkube.objects import holds, label, true_condition
from ptkube.resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    JOBS,
    JOBSETS,
    POD_TEMPLATES,
    PODS,
    POSTTRAINJOBS,
    PROVISIONING_REQUESTS,
    SANDBOX_CLAIMS,
    SERVICES,
    Manifest,
    Resource,
)
from ptoperator.capacity import open_attempt
from ptoperator.capacity.cloud import CloudProvider
from ptoperator.capacity.provisioning_request_state import NO_REQUEST, ProvisioningRequestState
from ptoperator.failures.pod_failures import PodFailure
from ptoperator.job import JobObject
from ptoperator.kube import labels, names
from ptoperator.kube.audited_client import KubeReader
from ptoperator.kueue import workload
from ptoperator.kueue.workload import KueueState
from ptoperator.observe import run_directory
from ptoperator.observe.cache import JobCache, Key
from ptoperator.observe.failed_nodes import inspect_failed_nodes
from ptoperator.observe.log_progress import with_log
from ptoperator.observe.missing_pods import is_scaled_up, why_a_pod_does_not_start, why_pods_are_missing, with_start_log
from ptoperator.observe.observed_parts import (
    PreflightObjects,
    RunDocuments,
    SandboxClaims,
    ServerObjects,
    StagingObjects,
    TensorBoardObjects,
)
from ptoperator.observe.state import Observed, is_scheduled, is_started
from ptoperator.observe.watch_caches import CachedReader
from ptoperator.render import Layout, layout_of
from ptoperator.render.pods.pod import pools_of
from ptoperator.render.serving import kind_of, serving_objects
from ptoperator.render.serving.server import server_of
from ptoperator.render.tensorboard import route_kind, tensorboard_host, tensorboard_name
from ptoperator.settings import Settings

logger = logging.getLogger(__name__)

_USUAL_START_S = 10.0
"""A pod that has had its node for so long may lack its ConfigMap."""


_SERVED = (Reason.SERVER_STARTING, Reason.SERVER_READY, Reason.CREATE_FAILED)
"""Reasons of the condition Served of a model that has, or gets, a server."""


def observe(
    reader: CachedReader,
    cache: JobCache,
    key: Key,
    settings: Settings,
    now: datetime,
    cloud: CloudProvider | None = None,
) -> Observed | None:
    """Return everything about the job now; None if it is deleted."""
    namespace, name = key
    manifest = _get(reader, POSTTRAINJOBS, name, namespace)
    if manifest is None:
        return None
    job = cache.note_job(manifest)
    layout = _layout(job, settings)
    now = now.replace(microsecond=0)  # as times are written; sums of differences stay exact
    state = Observed(now=now, observed_at=now, job=job, layout=layout)
    if job.is_deleting and not job.has_finalizer:
        return state
    if layout is not None and layout.has_tensorboard_server and not job.is_deleting:
        state = replace(state, tensorboard=_tensorboard(reader, layout))
    if layout is not None and layout.has_server and _wants_server(state) and not job.is_deleting:
        state = replace(state, server=_server(reader, layout))
    state = _with_sandboxes(reader, state)
    jobset_name = state.status.job_set or (layout.jobset if layout else "")
    if jobset_name:
        state = replace(state, jobset=_get(reader, JOBSETS, jobset_name, namespace))
    if not jobset_name or (state.status.phase.is_terminal and not _needs_cloud(state)):
        return _with_cloud(reader, state, cloud)
    all_pods = tuple(reader.list(PODS, namespace, labels=labels.selector(name)).items)
    pods = tuple(pod for pod in all_pods if not labels.is_before_chips(pod))
    for pod in all_pods:
        cache.note_pod(pod)
    inspect_failed_nodes(reader, cache, state)
    state = replace(state, pods=pods, failures=_failures(cache, state), pull_errors=cache.pull_errors(state.job.uid))
    state = replace(state, run=RunDocuments(other_owner=cache.run_directory_owner(key)))
    state = replace(state, kueue=_kueue(reader, state), workload=_workload(reader, state, settings))
    state = replace(state, bound_jobs=_bound_jobs(reader, state), ended_jobs=_ended_jobs(reader, state))
    state = replace(state, config_map_missing=_is_config_map_missing(reader, state))
    if state.is_staging_open:
        ours = tuple(pod for pod in all_pods if labels.is_of_stage(pod) and labels.is_of_job(pod, state.job.uid))
        stage_job = _get(reader, JOBS, names.stage(job.name, job.uid), namespace)
        state = replace(state, staging=StagingObjects(stage_job, ours))
    elif state.is_preflight_open and state.may_need_preflight:
        ours = tuple(pod for pod in all_pods if labels.is_of_preflight(pod) and labels.is_of_job(pod, state.job.uid))
        preflight_job = _get(reader, JOBS, names.preflight(job.name, job.uid), namespace)
        state = replace(state, preflight=PreflightObjects(preflight_job, ours))
    state = replace(state, is_scaled_up=is_scaled_up(reader, state))
    blocked = why_pods_are_missing(reader, state) or why_a_pod_does_not_start(reader, state)
    state = with_start_log(reader, replace(state, creation_failure=blocked), settings)
    return _with_cloud(reader, with_log(reader, _with_run_directory(state)), cloud)


def observe_progress(reader: KubeReader, last: Observed, now: datetime, cloud: CloudProvider | None = None) -> Observed:
    """Return the last observation with the current run directory, log and, if needed, cloud."""
    state = _with_run_directory(replace(last, now=now.replace(microsecond=0), tensorboard=None, sandboxes=None))
    return _with_cloud(reader, with_log(reader, state), cloud)


def _layout(job: JobObject, settings: Settings) -> Layout | None:
    """Return the layout of a job whose spec is valid, with the copy of its model once that is staged."""
    if not isinstance(job.parsed, PostTrainJob):
        return None
    return replace(layout_of(job.parsed, settings), staged_model=job.status.staged_model)


def _tensorboard(reader: KubeReader, layout: Layout) -> TensorBoardObjects:
    """Return the objects of the shared TensorBoard of a job's output."""
    name = tensorboard_name(layout.job.spec.output.uri)
    deployment = _get(reader, DEPLOYMENTS, name, layout.namespace)
    if deployment is None:
        return TensorBoardObjects()
    is_reached = bool(tensorboard_host(layout))
    route = _get(reader, route_kind(layout), name, layout.namespace) if is_reached else None
    return TensorBoardObjects(deployment, _get(reader, SERVICES, name, layout.namespace), route)


def _wants_server(state: Observed) -> bool:
    """Return True if the job has succeeded and its model is to be served."""
    condition = state.status.condition(ConditionType.SERVED)
    is_wanted = condition is not None and condition.reason in _SERVED
    return state.status.phase is Phase.SUCCEEDED and is_wanted


def _server(reader: KubeReader, layout: Layout) -> ServerObjects:
    """Return what serves the job's model, and what of it is missing."""
    wanted = [(kind_of(body), body) for body in serving_objects(server_of(layout))]
    present = {kind: _get(reader, kind, body["metadata"]["name"], layout.namespace) for kind, body in wanted}
    return ServerObjects(tuple((kind, body) for kind, body in wanted if present[kind] is None), present[DEPLOYMENTS])


def _with_sandboxes(reader: KubeReader, state: Observed) -> Observed:
    """Read the claims of a job that wants sandboxes, or once it has ended still has some.

    A cluster without Agent Sandbox, and a chart without `sandboxes.enabled`, make it a job without.
    """
    layout, counts = state.layout, state.status.sandboxes
    is_over = state.status.phase.is_terminal and not (counts and counts.total)
    if layout is None or not layout.has_sandboxes or state.job.is_deleting or is_over:
        return state
    try:
        selector = f"{labels.SANDBOX}={layout.sandboxes}"
        claims = SandboxClaims(tuple(reader.list(SANDBOX_CLAIMS, layout.namespace, labels=selector).items))
    except NotFound:
        claims = SandboxClaims(refusal=f"the cluster does not serve {SANDBOX_CLAIMS.api_version}")
    except Forbidden:
        claims = SandboxClaims(refusal="the operator may not claim sandboxes")
    return replace(state, sandboxes=claims, layout=replace(layout, has_sandboxes=claims.is_served))


def _with_cloud(reader: KubeReader, state: Observed, cloud: CloudProvider | None) -> Observed:
    if cloud is None or not _needs_cloud(state):
        return state
    snapshot = cloud.snapshot(state.job.uid)
    attempt = open_attempt(state.status.capacity) if state.jobset is None or state.is_suspended_by_kueue else None
    reservation = _reservation(state.job, attempt) if attempt else None
    if attempt is not None and reservation:
        snapshot = replace(snapshot, reservation=cloud.reservation(reservation, attempt.zone))
    return replace(state, cloud=snapshot, provisioning=_provisioning(reader, state))


def _reservation(job: JobObject, attempt: CapacityAttempt) -> str | None:
    """Return the reservation that an attempt uses, or None."""
    option = job.capacity[attempt.entry] if attempt.entry < len(job.capacity) else None
    return option.reservation if option and option.type == "reservation" else None


def _provisioning(reader: KubeReader, state: Observed) -> ProvisioningRequestState:
    """Read the ProvisioningRequest of a job that may have one, together with the cloud."""
    if all(option.type != "queuedProvisioning" for option in state.job.capacity):
        return NO_REQUEST
    name = names.provisioning_request(state.job.name, state.job.uid)
    try:
        request = _get(reader, PROVISIONING_REQUESTS, name, state.job.namespace)
        return ProvisioningRequestState(request, _get(reader, POD_TEMPLATES, name, state.job.namespace))
    except Forbidden as error:  # an older chart's role: what follows is refused too, and told
        logger.debug("ProvisioningRequests cannot be read: %s", error)
        return NO_REQUEST


def _needs_cloud(state: Observed) -> bool:
    """Return True if node pools are being created, waited for or released."""
    if state.job.is_deleting:
        return state.job.has_finalizer
    if not state.job.uses_pools:
        return False
    capacity = state.status.capacity
    is_without_quota = state.is_suspended_by_kueue and not (state.kueue and state.kueue.has_quota)
    if state.status.phase.is_terminal or is_without_quota:
        return bool(capacity.node_pools) or open_attempt(capacity) is not None
    is_waiting = not state.current_pods or not all(map(is_scheduled, state.current_pods))
    return state.jobset is None or is_waiting


def _with_run_directory(state: Observed) -> Observed:
    """Read only what may exist: progress once pods ran, the termination once something failed."""
    run = state.job.run_uri
    has_run = any(map(is_started, state.current_pods)) or state.status.start_time is not None
    if not run or not has_run or state.status.phase.is_terminal:
        return state
    known = sum(state.status.pod_restarts.values())
    has_failed = state.jobset_condition("Failed") or state.restarts > known
    progress = run_directory.read_progress(run)
    documents = replace(
        state.run,
        progress=progress,
        heartbeats=run_directory.read_heartbeats(run) if _is_silent(state, progress) else (),
        termination=run_directory.read_termination(run) if has_failed else None,
    )
    return replace(state, run=documents)


def _kueue(reader: KubeReader, state: Observed) -> KueueState | None:
    """Read Kueue's state while it suspends the JobSet, or seems to have started it without what it needs.

    That is without asking for node pools, or, while its pods have no nodes, without having slices formed.
    """
    if state.jobset is None or not state.jobset_queue or not state.is_jobset_ours:
        return None
    is_unasked = state.job.uses_pools and open_attempt(state.status.capacity) is None
    if state.layout is not None and state.layout.is_dynamic:
        is_unasked = not state.current_pods or not all(map(is_scheduled, state.current_pods))
    if not (state.is_suspended_by_kueue or is_unasked):
        return None
    try:
        return workload.read_state(
            reader, state.job.namespace, state.jobset_queue, str(state.jobset["metadata"]["uid"])
        )
    except Forbidden as error:  # an older chart's role
        logger.debug("Kueue cannot be read: %s", error)
        return None


def _workload(reader: KubeReader, state: Observed, settings: Settings) -> Manifest | None:
    """Read the Workload of a job that Kueue lets run, where its priority boost is to be kept."""
    if not settings.kueue_priority_boost or state.jobset is None or not state.jobset_queue:
        return None
    if not state.is_jobset_ours or state.is_suspended_by_kueue:
        return None
    try:
        return workload.find_workload(reader, state.job.namespace, str(state.jobset["metadata"]["uid"]))
    except (NotFound, Forbidden):
        return None


def _bound_jobs(reader: KubeReader, state: Observed) -> tuple[Manifest, ...]:
    """Return child Jobs bound to earlier node pools, while Kueue asks for new ones.

    A resumed JobSet adds to the selectors and tolerations of its existing Jobs; it removes none.
    """
    if state.kueue is None or not state.kueue.needs_answer or state.jobset is None or not state.job.uses_pools:
        return ()
    selector = f"{labels.JOBSET_NAME}={state.jobset['metadata']['name']}"
    children = reader.list(JOBS, state.job.namespace, labels=selector).items
    return tuple(child for child in children if pools_of(child["spec"]["template"]["spec"]))


def _ended_jobs(reader: KubeReader, state: Observed) -> tuple[Manifest, ...]:
    """Return the Jobs beside the trainer's that took an exit code of 0 for their end, while the run goes on."""
    roles = state.ended_roles
    if not roles or state.jobset is None:
        return ()
    selector = f"{labels.JOBSET_NAME}={state.jobset['metadata']['name']}"
    children = reader.list(JOBS, state.job.namespace, labels=selector).items
    return tuple(
        child for child in children if label(child, labels.REPLICATED_JOB_NAME) in roles and holds(child, "Complete")
    )


def _failures(cache: JobCache, state: Observed) -> tuple[PodFailure, ...]:
    """Return the failures under this JobSet: a recreated one counts its attempts from 0 again."""
    created = str(state.jobset["metadata"].get("creationTimestamp") or "") if state.jobset else ""
    return tuple(each for each in cache.failures(state.job.uid) if not each.time or each.time >= created)


def _is_silent(state: Observed, progress: Progress | None) -> bool:
    """Return True if the progress is so old that the processes' heartbeats are worth reading."""
    if progress is None or state.job.spec is None:
        return False
    timeout = state.job.spec.run_policy.hang_timeout_seconds
    age = timestamps.seconds_since(progress.updated, state.now)
    return age is not None and age > limit_s(progress.stage, progress.seconds_per_step, timeout)


def _is_config_map_missing(reader: KubeReader, state: Observed) -> bool:
    """Return True if pods that wait on their nodes would not find the ConfigMap that they mount."""
    if not state.is_jobset_ours or not any(_is_slow_to_start(pod, state.now) for pod in state.current_pods):
        return False
    return _get(reader, CONFIGMAPS, names.config_map(state.job.name, state.job.uid), state.job.namespace) is None


def _is_slow_to_start(pod: Manifest, now: datetime) -> bool:
    scheduled = true_condition(pod, "PodScheduled") or {}
    age = timestamps.seconds_since(scheduled.get("lastTransitionTime"), now)
    return age is not None and age >= _USUAL_START_S and not is_started(pod)


def _get(reader: KubeReader, resource: Resource, name: str, namespace: str) -> Manifest | None:
    try:
        return reader.get(resource, name, namespace)
    except NotFound:
        return None
