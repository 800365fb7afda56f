"""Detect a real JobSet controller on this cluster, to which ours yields.

Signs: its webhooks are registered (without it JobSets cannot even be created), its leader election Lease is being
renewed, or its Deployment requests replicas.
"""

from ptkube.client import Kube, NotFound
from ptkube.resources import DEPLOYMENTS, LEASES, MUTATING_WEBHOOKS, Manifest, Resource
from ptkube.timestamps import seconds_between

_LEASE_SUFFIX = ".jobset.x-k8s.io"
_WEBHOOKS = "jobset-mutating-webhook-configuration"
_PART_OF = "app.kubernetes.io/part-of=jobset"


def jobset_controller_is_installed(kube: Kube, now: str) -> bool:
    """Return True if a real JobSet controller is installed."""
    if any(item["metadata"]["name"] == _WEBHOOKS for item in _items(kube, MUTATING_WEBHOOKS, None)):
        return True
    leases = _items(kube, LEASES, None)
    if any(i["metadata"]["name"].endswith(_LEASE_SUFFIX) and lease_is_held(i, now) for i in leases):
        return True
    return any(int(d["spec"].get("replicas", 1)) > 0 for d in _items(kube, DEPLOYMENTS, _PART_OF))


def lease_is_held(lease: Manifest, now: str) -> bool:
    """Return True if the Lease was renewed within twice its duration: two missed renewals mean a dead holder."""
    spec = lease.get("spec") or {}
    if not spec.get("holderIdentity") or not spec.get("renewTime"):
        return False
    return seconds_between(spec["renewTime"], now) <= 2 * int(spec.get("leaseDurationSeconds") or 15)


def _items(kube: Kube, resource: Resource, labels: str | None) -> list[Manifest]:
    try:
        return kube.list(resource, labels=labels).items
    except NotFound:  # a server without the kind runs none
        return []
