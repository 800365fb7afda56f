"""Answer Kueue's admission check `posttrain.dev/node-pools`: the pools are ready, so the pods may start. Pure.

By then Kueue has reserved quota and created no pod. The answer carries what binds the pods to those pools; Kueue puts
it into the JobSet and resumes it. It reverts both itself when it evicts the job. See docs/decisions/0010.
"""

from collections.abc import Sequence
from datetime import datetime

from ptkube import timestamps
from ptkube.resources import WORKLOADS, Manifest
from ptoperator.kube.actions import PutStatus
from ptoperator.kueue.workload import KueueState
from ptoperator.render import Layout
from ptoperator.render.pods.pod import on_pools


def ready(layout: Layout, kueue: KueueState, pools: Sequence[str], now: datetime) -> PutStatus:
    """Return the answer. pools: those that the pods may run on; none: any existing nodes that fit."""
    workload = kueue.workload
    assert workload is not None
    checks = [_ready(each, layout, pools, now) if each["name"] == kueue.check else each for each in kueue.checks]
    return PutStatus(WORKLOADS, {**workload, "status": {**workload["status"], "admissionChecks": checks}})


def _pod_sets(layout: Layout) -> list[str]:
    """Return the pod sets with chips, which are the JobSet's replicated jobs."""
    return [layout.chip_pods, *(role.name for role in layout.beside if not role.chips.is_cpu)]


def _ready(check: Manifest, layout: Layout, pools: Sequence[str], now: datetime) -> Manifest:
    return {
        **check,
        "state": "Ready",
        "message": f"node pools {', '.join(sorted(pools))} are ready" if pools else "nodes are ready",
        "lastTransitionTime": timestamps.to_text(now),
        "podSetUpdates": [{"name": name, **on_pools(pools)} for name in _pod_sets(layout)] if pools else [],
    }
