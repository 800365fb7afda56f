"""The pods that a run needs: all of them, or with elastic slices those of enough slices. Pure.

Pathways' head is always needed. A slice is missing unless all its pods have nodes, and up to `pathways.elasticSlices`
may be missing.
"""

from collections import Counter
from dataclasses import replace

from ptkube.objects import label
from ptkube.resources import Manifest
from ptoperator.kube import labels, names
from ptoperator.observe.state import Observed, is_scheduled
from ptoperator.render import Layout


def missing_slices(layout: Layout, state: Observed) -> int:
    """Return the number of missing slices that the run goes on without; 0 also if it cannot go on."""
    allowed = layout.job.spec.pathways.elastic_slices
    if not allowed:
        return 0
    missing = layout.slices - len(_complete(layout, state))
    has_head = any(_role(pod) == names.PATHWAYS_HEAD and is_scheduled(pod) for pod in state.current_pods)
    return missing if has_head and missing <= allowed else 0


def without_missing(layout: Layout, state: Observed) -> Observed:
    """Return the state without the pods of slices that the run goes on without."""
    if not missing_slices(layout, state):
        return state
    there = _complete(layout, state)
    kept = tuple(pod for pod in state.pods if _role(pod) == names.PATHWAYS_HEAD or _slice(pod) in there)
    return replace(state, pods=kept)


def has_nodes(layout: Layout, state: Observed) -> bool:
    """Return True if every pod that the run needs has a node."""
    needed = without_missing(layout, state).current_pods
    return len(needed) == layout.pods - layout.hosts * missing_slices(layout, state) and all(map(is_scheduled, needed))


def _complete(layout: Layout, state: Observed) -> set[str]:
    workers = [pod for pod in state.current_pods if _role(pod) == names.PATHWAYS_WORKER and is_scheduled(pod)]
    return {index for index, count in Counter(map(_slice, workers)).items() if count == layout.hosts}


def _role(pod: Manifest) -> str:
    return label(pod, labels.REPLICATED_JOB_NAME)


def _slice(pod: Manifest) -> str:
    return label(pod, labels.JOB_INDEX)
