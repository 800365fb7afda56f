"""The pods that a run needs: all, or with elastic slices those of enough slices, or once it trains the trainer's alone.

Pathways' head is always needed. A slice is missing unless all its pods have nodes, and up to `pathways.elasticSlices`
may be missing. Of a run with `accelerator.minSlices` that has begun, a slice is missing unless all its pods run. A
sampler, or a service, is made anew by its Job while the trainer goes on. Pure.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from ptapi.accelerators.roles import Role
from ptapi.conditions import Phase
from ptapi.status import SlicesStatus
from ptkube.objects import label
from ptkube.resources import Manifest
from ptoperator.kube import labels, names
from ptoperator.observe.state import Observed, is_scheduled, is_started, why_unscheduled
from ptoperator.render import Layout


def missing_slices(layout: Layout, state: Observed) -> int:
    """Return the number of missing slices that the run goes on without; 0 also if it cannot go on."""
    if layout.is_supervised:
        missing = layout.slices - len(_complete(layout, state))
        least = layout.job.spec.accelerator.min_slices or layout.slices
        return missing if status(state) is not None and missing <= layout.slices - least else 0
    allowed = layout.job.spec.pathways.elastic_slices
    if not allowed:
        return 0
    missing = layout.slices - len(_complete(layout, state))
    has_head = any(_role(pod) == names.PATHWAYS_HEAD and is_scheduled(pod) for pod in state.current_pods)
    return missing if has_head and missing <= allowed else 0


def incomplete(role: Role, pods: Iterable[Manifest]) -> tuple[int, ...]:
    """Return the indices of the samplers, or replicas, of which these pods are not all hosts'."""
    hosts = {(_slice(pod), label(pod, labels.COMPLETION_INDEX)) for pod in pods if _role(pod) == role.name}
    there = Counter(index for index, _ in hosts)
    return tuple(index for index in range(role.count) if there[str(index)] < role.hosts)


def away(layout: Layout, state: Observed) -> str:
    """Return `sampler 1 is away, of 3; service judge 0 is away, of 1`, with what pods wait for; empty if none is."""
    return "; ".join(filter(None, (_away(role, state) for role in layout.beside)))


def _away(role: Role, state: Observed) -> str:
    missing = incomplete(role, filter(is_started, state.current_pods))
    if not missing:
        return ""
    numbers = ", ".join(map(str, missing))
    pods = [pod for pod in state.current_pods if _role(pod) == role.name and _slice(pod) in map(str, missing)]
    why = next(filter(None, map(why_unscheduled, pods)), "")
    verb = f"{role.noun} {{}} is" if len(missing) == 1 else f"{role.nouns} {{}} are"
    return f"{verb.format(numbers)} away, of {role.count}{f': {why}' if why else ''}"


def without_missing(layout: Layout, state: Observed) -> Observed:
    """Return the state without the pods of slices, samplers and services that the run goes on without."""
    needed = state.trainer_pods if _goes_on(layout, state) else state.pods
    if missing_slices(layout, state):
        there = _complete(layout, state)
        needed = tuple(pod for pod in needed if _role(pod) != layout.chip_pods or _slice(pod) in there)
    return replace(state, pods=needed)


def has_nodes(layout: Layout, state: Observed) -> bool:
    """Return True if every pod that the run needs has a node."""
    needed = without_missing(layout, state).current_pods
    return len(needed) == needed_pods(layout, state) and all(map(is_scheduled, needed))


def needed_pods(layout: Layout, state: Observed) -> int:
    """Return how many pods the run needs."""
    beside = layout.pods_beside if _goes_on(layout, state) else 0
    return layout.pods - beside - layout.hosts * missing_slices(layout, state)


def slices_at_work(state: Observed) -> str:
    """Return ` on 2 of 4 slices, after 3 restarts in place (HostError 2, Resized 1)`; empty without supervisors."""
    slices = status(state)
    if slices is None:
        return ""
    total = sum(slices.restarts.values())
    counts = ", ".join(f"{kind} {count}" for kind, count in sorted(slices.restarts.items()))
    after = f", after {total} restart{'' if total == 1 else 's'} in place ({counts})" if total else ""
    return f" on {slices.training} of {slices.total} slices{after}"


def status(state: Observed) -> SlicesStatus | None:
    """Return the slices that train, as this job's supervisors' trainer reported them; None if none did."""
    progress = state.run.progress
    if progress is None or progress.slices is None or progress.job_uid != state.job.uid:
        return None
    slices = progress.slices
    return SlicesStatus(total=slices.total, training=len(slices.present), restarts=slices.restarts)


def _goes_on(layout: Layout, state: Observed) -> bool:
    """Return True if the run trains, so that it needs no pod beside the trainer's."""
    return bool(layout.beside) and state.status.phase is Phase.RUNNING and bool(state.trainer_pods)


def _complete(layout: Layout, state: Observed) -> set[str]:
    is_there = is_started if layout.is_supervised else is_scheduled
    workers = [pod for pod in state.current_pods if _role(pod) == layout.chip_pods and is_there(pod)]
    return {index for index, count in Counter(map(_slice, workers)).items() if count == layout.hosts}


def _role(pod: Manifest) -> str:
    return label(pod, labels.REPLICATED_JOB_NAME)


def _slice(pod: Manifest) -> str:
    return label(pod, labels.JOB_INDEX)
