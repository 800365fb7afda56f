"""Requests and limits of the containers: the job's, over the administrator's, over a default for each kind.

A trainer on a machine of known size asks for most of it: no other pod belongs there, and without a request it is
the first that the kubelet ends when memory runs short. Left out: such a default for a job in a Kueue queue, where every
request counts against a quota that may not cover it.
"""

from ptapi.spec import ContainerResources, Resources
from ptkube.resources import Manifest
from ptoperator.render.layout import Layout
from ptoperator.settings import pod_defaults

# Modest on purpose: a two-process job fits beside the control plane on a laptop with two cores.
CPU_HOST = {"requests": {"cpu": "500m", "memory": "1Gi"}}
HEAD = {"requests": {"cpu": "24", "memory": "100G"}}
"""Of the trainer in a Pathways head: what XPK gives it. It holds the data, the rewards' children and host copies."""
PREFLIGHT = {"requests": {"cpu": "1", "memory": "3Gi"}, "limits": {"memory": "6Gi"}}
"""The compiler takes 1 to 3 GB, whatever the model; more, rarely, for many experts."""
STAGE = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "4Gi"}}
"""Files pass through the disk and are read in parts."""
RESOURCE_MANAGER = {"limits": {"cpu": "8", "memory": "32G"}}
PROXY = {"limits": {"cpu": "16", "memory": "100G"}}
_REQUESTED, _ALLOWED = 0.85, 0.95
"""Shares of a machine. GKE keeps up to a tenth of the smallest one for itself, 3 % of the others (its page on node
sizes), and its daemons ask for some more; a limit so near to all of it ends the trainer before the kubelet must."""


def of(layout: Layout, role: str, default: Manifest, chips: int = 0) -> Manifest:
    """Return a container's resources. role: its field in `spec.resources`."""
    layers = (pod_defaults.resources(layout.settings.trainer_resources), layout.job.spec.resources or Resources())
    return with_chips(layout, over(default, *(getattr(layer, role) for layer in layers)), chips)


def with_chips(layout: Layout, amounts: Manifest, chips: int) -> Manifest:
    """Return a container's resources with as many chips of the layout's kind."""
    named = {layout.accelerator.resource: chips} if chips else {}
    return {**amounts, "limits": {**amounts.get("limits", {}), **named}} if named else amounts


def trainer_default(layout: Layout) -> Manifest:
    """Return the default of each trainer's container."""
    host, containers = layout.accelerator.host, layout.processes_per_host
    if layout.accelerator.is_cpu:
        return CPU_HOST
    if host is None or layout.job.spec.queue is not None:
        return {}
    requested, allowed = (int(host.memory_gb * share) // containers for share in (_REQUESTED, _ALLOWED))
    cpu = int(host.vcpus * _REQUESTED) // containers
    return {"requests": {"cpu": str(cpu), "memory": f"{requested}G"}, "limits": {"memory": f"{allowed}G"}}


def over(default: Manifest, *stated: ContainerResources | None) -> Manifest:
    """Return the default with what is stated over it: a resource that is named replaces request and limit."""
    merged: Manifest = {kind: dict(default.get(kind, {})) for kind in ("requests", "limits")}
    for each in stated:
        overrides = each.model_dump(mode="json", by_alias=True, exclude_none=True) if each else {}
        named = {name for amounts in overrides.values() for name in amounts}
        for kind, amounts in merged.items():
            kept = {name: amount for name, amount in amounts.items() if name not in named}
            merged[kind] = {**kept, **overrides.get(kind, {})}
    return {kind: amounts for kind, amounts in merged.items() if amounts}
