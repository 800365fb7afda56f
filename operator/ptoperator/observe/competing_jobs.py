"""Find the jobs that want the same chips, for `capacity.waiting_line`.

Waiting is free: positions come from the watch. Before a turn is given the existing nodes are read from the API server,
and once, for all turns that this operator gives, all jobs: what changes in a line afterwards are its own writes, which
it notes at once. So neither an old cache nor a new operator gives a turn twice.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from ptapi.accelerators import Slice
from ptkube.errors import Forbidden, NotFound
from ptkube.objects import holds
from ptkube.resources import NODES, POSTTRAINJOBS, PRIORITY_CLASSES, Manifest
from ptoperator.capacity import open_attempt
from ptoperator.kube import labels
from ptoperator.kube.audited_client import KubeReader
from ptoperator.observe.cache import JobCache
from ptoperator.observe.state import Observed


def with_competing_jobs(reader: KubeReader, cache: JobCache, state: Observed) -> Observed:
    """Add the other jobs' claims, if the job may have to queue."""
    accelerator = _contended_slice(state)
    if accelerator is None:
        return state
    competing = replace(state.competing, standing=cache.standing(state.job))
    if open_attempt(state.status.capacity) is None and state.observed_at == state.now:
        assert state.job.spec is not None
        competing = replace(competing, priority=_priority(reader, state.job.spec.priority_class_name))
    return replace(state, competing=competing)


def with_fresh_claims(
    reader: KubeReader, cache: JobCache, state: Observed, namespaces: Sequence[str], every_s: float
) -> Observed:
    """Add the job's standing among all jobs, read at most `every_s` ago. namespaces: those served; none: all."""
    accelerator = _contended_slice(state)
    assert accelerator is not None
    if not cache.are_turns_known(state.now, every_s):
        _read_all(reader, cache, state.now, namespaces)
    nodes = _free_hosts(reader, accelerator)
    return replace(state, competing=replace(state.competing, standing=cache.standing(state.job), nodes=nodes))


def _read_all(reader: KubeReader, cache: JobCache, now: datetime, namespaces: Sequence[str]) -> None:
    cache.note_all_read(now)  # before: a call may fail meanwhile
    served: Sequence[str | None] = namespaces or [None]
    for namespace in served:
        for job in reader.list(POSTTRAINJOBS, namespace).items:
            cache.note_job(job)


def _contended_slice(state: Observed) -> Slice | None:
    """Return the chips of a job that has none yet, if other jobs may want them."""
    is_over = state.job.is_deleting or state.status.phase.is_terminal or state.jobset is not None
    kinds = {option.type for option in state.job.capacity}
    if is_over or state.layout is None or state.layout.job.spec.queue or not kinds & {"existing", "reservation"}:
        return None
    return None if state.layout.accelerator.is_cpu else state.layout.accelerator


def _priority(reader: KubeReader, name: str | None) -> int:
    """Return the value of a PriorityClass; 0 if none is named or it is missing, when no pod is created either."""
    if not name:
        return 0
    try:
        return int(reader.get(PRIORITY_CLASSES, name).get("value") or 0)
    except (NotFound, Forbidden):
        return 0


def _free_hosts(reader: KubeReader, accelerator: Slice) -> int:
    """Return the VMs in complete slices of this shape among nodes that anybody may use.

    0 if nodes may not be listed, so that one job after the other tries.
    """
    shape = ",".join(f"{key}={value}" for key, value in labels.nodes_of(accelerator).items())
    try:
        nodes = reader.list(NODES, None, labels=shape).items
    except Forbidden:
        return 0
    pools = Counter(
        str(node["metadata"]["labels"].get(labels.NODE_POOL)) for node in nodes if _is_usable(node, accelerator)
    )
    return sum(count // accelerator.vms * accelerator.vms for count in pools.values())


def _is_usable(node: Manifest, accelerator: Slice) -> bool:
    """Return True for a node that is ready, schedulable, large enough and not created for one job."""
    spec = node.get("spec") or {}
    is_ours = any(taint.get("key") == labels.POOL_TAINT for taint in spec.get("taints") or [])
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    if accelerator.is_gpu and int(allocatable.get(accelerator.resource, 0)) < accelerator.chips_per_vm:
        return False
    return holds(node, "Ready") and not is_ours and not spec.get("unschedulable")
