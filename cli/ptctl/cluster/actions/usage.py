"""`ptctl cluster queue`, `quota` and `nodes`: waiting jobs, Kueue's quotas, and which jobs use which chips."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from ptapi.accelerators.slice import GPU_RESOURCE, TPU_RESOURCE
from ptctl.cluster.doctor.queues import CLUSTER_QUEUES, condition
from ptctl.jobs.columns import slice_label
from ptctl.jobs.view import JobView, part, view
from ptctl.ui.app import App, Target
from ptctl.ui.duration import age
from ptctl.ui.table import table_or_records
from ptkube.client import Kube
from ptkube.errors import NotFound
from ptkube.objects import label
from ptkube.resources import NODES, PODS, POSTTRAINJOBS, Manifest
from ptoperator.kube import labels

Row = dict[str, object]
_KINDS = (TPU_RESOURCE, GPU_RESOURCE)
_WAITING = ("Pending", "Preflight", "Queued", "Provisioning")


def queue(app: App, target: Target, form: str | None) -> None:
    """Print the jobs that wait, the longest wait first."""
    kube = app.connect(target)
    namespace = None if target.everywhere else target.namespace
    _print(app, queue_rows(kube.list(POSTTRAINJOBS, namespace).items), form, "no job waits")


def queue_rows(jobs: Sequence[Manifest]) -> list[Row]:
    """Return what is known of each job that waits, the longest wait first."""
    waiting = [job for job in map(view, jobs) if job.phase in _WAITING]
    now = datetime.now(UTC)
    return [
        {
            "namespace": job.namespace,
            "name": job.name,
            "phase": job.phase,
            "queue": job.queue,
            "accelerator": slice_label(job),
            "chips": job.chips,
            "age": age(job.created, now),
            "waits for": waits_for(job),
        }
        for job in sorted(waiting, key=lambda each: each.created)
    ]


def waits_for(job: JobView) -> str:
    """Return the message of the first condition that is not met."""
    kinds = ("Validated", "Staged", "Preflighted", "QuotaReserved", "CapacityReady")
    unmet = next((c for c in map(job.condition, kinds) if c and c["status"] != "True"), None)
    return str(unmet.get("message") or unmet["reason"]) if unmet else "the operator"


def quota(app: App, target: Target, form: str | None) -> None:
    """Print what each ClusterQueue has of each resource, and what of it is in use."""
    rows = quota_rows(app.connect(target))
    if rows is None:
        app.console.say("Kueue is not installed in this cluster: `ptctl cluster nodes` shows what is in use")
        return
    _print(app, rows, form, "no ClusterQueue")


def quota_rows(kube: Kube) -> list[Row] | None:
    """Return each resource of each ClusterQueue; None without Kueue."""
    try:
        queues = kube.list(CLUSTER_QUEUES).items
    except NotFound:
        return None
    return [row for each in queues for row in _quota_rows(each)]


def _quota_rows(body: Manifest) -> Iterator[Row]:
    status = body.get("status") or {}
    used = _totals(status.get("flavorsUsage"))
    reserved = _totals(status.get("flavorsReservation"))
    active = condition(body, "Active")
    for group in body["spec"].get("resourceGroups") or []:
        for flavor in group["flavors"]:
            for resource in flavor["resources"]:
                key = (flavor["name"], resource["name"])
                yield {
                    "queue": body["metadata"]["name"],
                    "flavor": flavor["name"],
                    "resource": resource["name"],
                    "quota": str(resource["nominalQuota"]),
                    "reserved": reserved.get(key, "0"),
                    "used": used.get(key, "0"),
                    "pending": int(status.get("pendingWorkloads") or 0),
                    "active": (active or {}).get("status", "Unknown"),
                }


def _totals(flavors: Sequence[Manifest] | None) -> dict[tuple[str, str], str]:
    return {
        (flavor["name"], resource["name"]): str(resource.get("total") or "0")
        for flavor in flavors or []
        for resource in flavor.get("resources") or []
    }


def nodes(app: App, target: Target, form: str | None) -> None:
    """Print the node pools with chips: what they are, how many nodes are ready, and which jobs use them."""
    _print(app, pool_rows(app.connect(target)), form, "no node has chips")


def pool_rows(kube: Kube) -> list[Row]:
    """Return the node pools with chips, by name."""
    machines = [node for node in kube.list(NODES).items if _chips(node)]
    jobs = _jobs_by_node(kube) if machines else {}
    pools: dict[str, list[Manifest]] = {}
    for node in machines:
        pools.setdefault(label(node, labels.NODE_POOL) or node["metadata"]["name"], []).append(node)
    return [_pool_row(name, pools[name], jobs) for name in sorted(pools)]


def node_rows(kube: Kube) -> list[Row]:
    """Return the nodes with chips, by pool and name."""
    machines = [node for node in kube.list(NODES).items if _chips(node)]
    jobs = _jobs_by_node(kube) if machines else {}
    rows = [_node_row(node, jobs.get(node["metadata"]["name"], {})) for node in machines]
    return sorted(rows, key=lambda row: (str(row["pool"]), str(row["node"])))


def _node_row(node: Manifest, users: dict[str, int]) -> Row:
    return {
        "pool": label(node, labels.NODE_POOL),
        "node": node["metadata"]["name"],
        "ready": "yes" if _is_ready(node) else "no",
        "chips": _chips(node),
        "used": sum(users.values()),
        "by": ", ".join(sorted(users)),
    }


def _pool_row(name: str, machines: list[Manifest], jobs: dict[str, dict[str, int]]) -> Row:
    first = machines[0]
    users: dict[str, int] = {}
    for node in machines:
        for job, chips in jobs.get(node["metadata"]["name"], {}).items():
            users[job] = users.get(job, 0) + chips
    return {
        "pool": name,
        "accelerator": label(first, labels.TPU_ACCELERATOR) or label(first, labels.GPU_ACCELERATOR),
        "topology": label(first, labels.TPU_TOPOLOGY),
        "zone": label(first, "topology.kubernetes.io/zone"),
        "spot": "yes" if label(first, "cloud.google.com/gke-spot") == "true" else "",
        "ready": f"{sum(_is_ready(node) for node in machines)}/{len(machines)}",
        "chips": sum(map(_chips, machines)),
        "used": sum(users.values()),
        "by": ", ".join(sorted(users)),
    }


def _jobs_by_node(kube: Kube) -> dict[str, dict[str, int]]:
    """Return the chips that each job, or other pod, uses on each node."""
    usage: dict[str, dict[str, int]] = {}
    for pod in kube.list(PODS).items:
        chips = sum(
            int(part(each, "resources", "limits", kind, missing=0))
            for each in pod["spec"].get("containers") or []
            for kind in _KINDS
        )
        node = pod["spec"].get("nodeName")
        if node and chips and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            meta = pod["metadata"]
            owner = f"{meta['namespace']}/{label(pod, labels.JOB) or meta['name']}"
            on_node = usage.setdefault(node, {})
            on_node[owner] = on_node.get(owner, 0) + chips
    return usage


def _chips(node: Manifest) -> int:
    return sum(int(part(node, "status", "capacity", kind, missing=0)) for kind in _KINDS)


def _is_ready(node: Manifest) -> bool:
    ready = condition(node, "Ready")
    return ready is not None and ready["status"] == "True"


def _print(app: App, rows: list[Row], form: str | None, nothing: str) -> None:
    if form == "json":
        app.console.data(json.dumps({"items": rows}, indent=2))
    elif rows:
        app.console.data(text(rows, app.console.width))
    else:
        app.console.say(nothing)


def text(rows: Sequence[Row], width: int | None) -> str:
    """Format rows as a table."""
    cells = [[str(value) for value in row.values()] for row in rows]
    return table_or_records([key.upper() for key in rows[0]], cells, width)
