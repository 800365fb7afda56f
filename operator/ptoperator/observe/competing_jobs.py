"""Who else wants the chips that a job is about to ask for: gathered for `capacity.line`.

Waiting costs nothing: everybody's place is known from the watch. Only before a turn is given are all jobs, and the
nodes that are there, read from the API server, so that neither an old cache nor a new operator gives one twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from ptapi.accelerators import Slice
from ptkube.errors import Forbidden, NotFound
from ptkube.objects import holds
from ptkube.resources import NODES, POSTTRAINJOBS, PRIORITY_CLASSES, Manifest, Resource
from ptoperator.capacity import open_attempt
from ptoperator.capacity.fair_queue import accelerator_of, claim_of, options_of
from ptoperator.kube import labels
from ptoperator.observe.cache import JobCache
from ptoperator.observe.state import Observed


class Reader(Protocol):
    """The part of `kube.Kube` that this needs."""

    def get(self, r: Resource, name: str, namespace: str | None = None, /) -> Manifest: ...
    def list(self, r: Resource, namespace: str | None = None, /, *, labels: str | None = None) -> Any: ...


def with_competing_jobs(reader: Reader, cache: JobCache, state: Observed) -> Observed:
    """What was heard of others, for a job that may have to stand in line."""
    accelerator = _contended_slice(state)
    if accelerator is None:
        return state
    competing = replace(state.competing, claims=cache.claims(), created=_created(state))
    if open_attempt(state.status.capacity) is None and state.observed_at == state.now:
        competing = replace(competing, priority=_priority(reader, state.job["spec"].get("priorityClassName")))
    return replace(state, competing=competing)


def with_fresh_claims(reader: Reader, cache: JobCache, state: Observed, namespaces: Sequence[str]) -> Observed:
    """Everybody's place, read now. namespaces: the served ones; none: all."""
    accelerator = _contended_slice(state)
    assert accelerator is not None
    served: Sequence[str | None] = namespaces or [None]
    jobs = [job for namespace in served for job in reader.list(POSTTRAINJOBS, namespace).items]
    for job in jobs:
        cache.note_job(job)
    claims = tuple(filter(None, map(claim_of, jobs)))
    nodes = _free_hosts(reader, accelerator)
    return replace(state, competing=replace(state.competing, claims=claims, nodes=nodes))


def without_claims(state: Observed) -> Observed:
    """To be kept until the next look: a thousand jobs that wait for one another would be a million claims."""
    return replace(state, competing=replace(state.competing, claims=())) if state.competing.claims else state


def _contended_slice(state: Observed) -> Slice | None:
    """The chips of a job that has none yet, if others may want the same ones."""
    spec = state.job.get("spec") or {}
    is_over = state.is_deleting or state.status.phase.is_terminal or state.jobset is not None
    kinds = {option.get("type") for option in options_of(state.job)}
    if is_over or spec.get("queue") or not kinds & {"existing", "reservation"}:
        return None
    found = accelerator_of(state.job)
    return None if found is None or found.is_cpu else found


def _created(state: Observed) -> str:
    return str(state.job["metadata"].get("creationTimestamp") or "")


def _priority(reader: Reader, name: str | None) -> int:
    """Of the job's PriorityClass; 0 without one, and for one that is not there, with which no pod is made either."""
    if not name:
        return 0
    try:
        return int(reader.get(PRIORITY_CLASSES, name).get("value") or 0)
    except (NotFound, Forbidden):
        return 0


def _free_hosts(reader: Reader, accelerator: Slice) -> int:
    """VMs of complete slices of this shape among the nodes that are there and that anybody may use. 0 where they may
    not be counted, so that one job after the other tries."""
    shape = f"{labels.TPU_ACCELERATOR}={accelerator.gke_accelerator},{labels.TPU_TOPOLOGY}={accelerator.topology}"
    try:
        nodes = reader.list(NODES, None, labels=shape).items
    except Forbidden:
        return 0
    pools = Counter(str(node["metadata"]["labels"].get(labels.NODE_POOL)) for node in nodes if _is_usable(node))
    return sum(count // accelerator.vms * accelerator.vms for count in pools.values())


def _is_usable(node: Manifest) -> bool:
    """Ready, and neither closed nor made for one job."""
    spec = node.get("spec") or {}
    is_ours = any(taint.get("key") == labels.POOL_TAINT for taint in spec.get("taints") or [])
    return holds(node, "Ready") and not is_ours and not spec.get("unschedulable")
