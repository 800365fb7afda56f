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
from ptoperator.capacity import is_open, uses_pools
from ptoperator.capacity.attempts import may_book, reservation_of
from ptoperator.capacity.cloud import CloudProvider
from ptoperator.capacity.provisioning_state import NOTHING, Booking
from ptoperator.failures.pod_failures import PodFailure
from ptoperator.kube import labels, names
from ptoperator.kueue import workload
from ptoperator.kueue.workload import Place
from ptoperator.observe import run_directory
from ptoperator.observe.cache import Key, Memory
from ptoperator.observe.failed_nodes import ask_nodes
from ptoperator.observe.maxtext_progress import LogReader, with_log
from ptoperator.observe.state import Observed, TensorBoardObjects, is_scheduled, is_started
from ptoperator.render import Layout, layout_of
from ptoperator.render.pod import pools_of
from ptoperator.render.tensorboard import board_host, board_name, entry_kind
from ptoperator.settings import Settings

logger = logging.getLogger(__name__)


class Reader(LogReader, workload.Reader, Protocol):
    """The part of `kube.Kube` that observing needs."""

    def get(self, r: Resource, name: str, namespace: str | None = None, /) -> Manifest: ...
    def list(self, r: Resource, namespace: str | None = None, /, *, labels: str | None = None) -> Any: ...


def observe(
    reader: Reader, memory: Memory, key: Key, settings: Settings, now: datetime, cloud: CloudProvider | None = None
) -> Observed | None:
    """Everything about the job now; None if it is gone."""
    namespace, name = key
    job = _get(reader, POSTTRAINJOBS, name, namespace)
    if job is None:
        return None
    memory.note_job(job)
    now = now.replace(microsecond=0)  # as times are written; sums of differences stay exact
    seen = Observed(now=now, looked=now, job=job)
    if seen.is_deleting and not seen.has_finalizer:
        return seen
    jobset_name = seen.status.job_set or _jobset_name(job, settings)
    if jobset_name:
        seen = replace(seen, jobset=_get(reader, JOBSETS, jobset_name, namespace))
    if not jobset_name or (seen.status.phase.is_terminal and not _wants_cloud(seen)):
        return _with_cloud(reader, seen, cloud)
    found = tuple(map(_slim, reader.list(PODS, namespace, labels=labels.selector(name)).items))
    pods = tuple(pod for pod in found if not labels.is_of_preflight(pod))
    for pod in found:
        memory.note_pod(pod)
    ask_nodes(reader, memory, seen)
    seen = replace(seen, pods=pods, failures=_failures(memory, seen), pull_errors=memory.pull_errors(seen.uid))
    seen = replace(seen, rival=memory.rival(key))
    seen = replace(seen, place=_place(reader, seen))
    seen = replace(seen, bound_jobs=_bound_jobs(reader, seen))
    seen = replace(seen, config_map_missing=_is_config_map_missing(reader, seen))
    if seen.is_preflight_open and seen.may_need_preflight:
        ours = tuple(pod for pod in found if labels.is_of_preflight(pod) and labels.is_of_job(pod, seen.uid))
        made = _get(reader, JOBS, names.preflight(seen.name, seen.uid), namespace)
        seen = replace(seen, preflight_job=made, preflight_pods=ours)
    return _with_cloud(reader, with_log(reader, _with_run_directory(seen)), cloud)


def observe_progress(reader: Reader, last: Observed, now: datetime, cloud: CloudProvider | None = None) -> Observed:
    """The last look, with what the run directory, and where it matters the cloud, says now."""
    seen = _with_run_directory(replace(last, now=now.replace(microsecond=0)))
    return _with_cloud(reader, with_log(reader, seen), cloud)


def observe_board(reader: Reader, seen: Observed, layout: Layout) -> TensorBoardObjects:
    """The shared TensorBoard of a job's output."""
    name = board_name(layout.job.spec.output.uri)
    deployment = _get(reader, DEPLOYMENTS, name, seen.namespace)
    if deployment is None:
        return TensorBoardObjects()
    is_reached = bool(board_host(layout))
    entry = _get(reader, entry_kind(layout), name, seen.namespace) if is_reached else None
    return TensorBoardObjects(deployment, _get(reader, SERVICES, name, seen.namespace), entry)


def _with_cloud(reader: Reader, seen: Observed, cloud: CloudProvider | None) -> Observed:
    if cloud is None or not _wants_cloud(seen):
        return seen
    found = cloud.look(seen.uid)
    attempt = is_open(seen.status.capacity) if seen.jobset is None or seen.is_held_by_kueue else None
    reservation = reservation_of(seen.job, attempt) if attempt else None
    if attempt is not None and reservation:
        found = replace(found, reservation=cloud.reservation(reservation, attempt.zone))
    return replace(seen, cloud=found, booking=_booking(reader, seen))


def _booking(reader: Reader, seen: Observed) -> Booking:
    """Asked together with the cloud, of a job that may be queued by it."""
    if not may_book(seen.job):
        return NOTHING
    name = names.provisioning_request(seen.name, seen.uid)
    try:
        request = _get(reader, PROVISIONING_REQUESTS, name, seen.namespace)
        return Booking(request, _get(reader, POD_TEMPLATES, name, seen.namespace))
    except Forbidden as error:  # an older chart's role: what follows is refused too, and told
        logger.debug("ProvisioningRequests cannot be read: %s", error)
        return NOTHING


def _wants_cloud(seen: Observed) -> bool:
    """Whether node pools are made, waited for or given back now."""
    if seen.is_deleting:
        return seen.has_finalizer
    if not uses_pools(seen.job):
        return False
    capacity = seen.status.capacity
    is_without_quota = seen.is_held_by_kueue and not (seen.place and seen.place.has_quota)
    if seen.status.phase.is_terminal or is_without_quota:
        return bool(capacity.node_pools) or is_open(capacity) is not None
    is_waiting = not seen.current_pods or not all(map(is_scheduled, seen.current_pods))
    return seen.jobset is None or is_waiting


def _with_run_directory(seen: Observed) -> Observed:
    """Read only what may have been written: progress once pods ran, the termination once something failed."""
    run = run_directory.of_job(seen.job)
    has_run = any(map(is_started, seen.current_pods)) or seen.status.start_time is not None
    if not run or not has_run or seen.status.phase.is_terminal:
        return seen
    known = sum(seen.status.restarts.values())
    has_failed = seen.jobset_condition("Failed") or seen.restarts > known
    progress = run_directory.read_progress(run)
    return replace(
        seen,
        progress=progress,
        heartbeats=run_directory.read_heartbeats(run) if _is_silent(seen, progress) else (),
        termination=run_directory.read_termination(run) if has_failed else None,
    )


def _place(reader: Reader, seen: Observed) -> Place | None:
    """Asked while Kueue holds the JobSet back, or seems to have let it run without asking for node pools."""
    if seen.jobset is None or not seen.jobset_queue or not seen.is_jobset_ours:
        return None
    is_unasked = uses_pools(seen.job) and is_open(seen.status.capacity) is None
    if not (seen.is_held_by_kueue or is_unasked):
        return None
    try:
        return workload.look(reader, seen.namespace, seen.jobset_queue, str(seen.jobset["metadata"]["uid"]))
    except Forbidden as error:  # an older chart's role
        logger.debug("Kueue cannot be asked: %s", error)
        return None


def _bound_jobs(reader: Reader, seen: Observed) -> tuple[Manifest, ...]:
    """Asked while Kueue asks for node pools. A JobSet that runs again adds to the selectors and tolerations of the Jobs
    that it has; it takes nothing away."""
    if seen.place is None or not seen.place.is_asking or seen.jobset is None or not uses_pools(seen.job):
        return ()
    selector = f"{labels.JOBSET_NAME}={seen.jobset['metadata']['name']}"
    children = reader.list(JOBS, seen.namespace, labels=selector).items
    return tuple(child for child in children if pools_of(child["spec"]["template"]["spec"]))


def _failures(memory: Memory, seen: Observed) -> tuple[PodFailure, ...]:
    """Those under this JobSet: one that was made anew counts its attempts from 0 again."""
    made = str(seen.jobset["metadata"].get("creationTimestamp") or "") if seen.jobset else ""
    return tuple(each for each in memory.failures(seen.uid) if not each.time or each.time >= made)


def _is_silent(seen: Observed, progress: Progress | None) -> bool:
    """Whether the run says nothing for so long that it is worth asking which process stays behind."""
    if progress is None:
        return False
    asked = ((seen.job.get("spec") or {}).get("runPolicy") or {}).get("hangTimeoutSeconds")
    age = timestamps.seconds_since(progress.updated, seen.now)
    return age is not None and age > limit_s(progress.stage, progress.seconds_per_step, asked)


def _is_config_map_missing(reader: Reader, seen: Observed) -> bool:
    """Asked while pods may still have to mount it."""
    if seen.jobset is None or not seen.is_jobset_ours or all(map(is_started, seen.current_pods or [{}])):
        return False
    return _get(reader, CONFIGMAPS, names.config_map(seen.name, seen.uid), seen.namespace) is None


def _slim(pod: Manifest) -> Manifest:
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
