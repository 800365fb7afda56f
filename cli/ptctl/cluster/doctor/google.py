"""Google's side: what the caller may do, the cluster itself, quotas of a type, and a reservation's state."""

from __future__ import annotations

from collections.abc import Iterator

from ptctl.cluster.cloud.cloud_errors import MissingInCloudError
from ptctl.cluster.definition.spec import region_of
from ptctl.cluster.doctor.finding import CheckContext, Finding, Google, error, ok, warning
from ptoperator.capacity.gke.reservations import counts, split

_PERMISSIONS = (
    "container.clusters.get",
    "container.clusters.list",
    "container.clusters.create",
    "container.clusters.update",
    "container.clusters.delete",
    "container.operations.get",
    "container.operations.list",
    "compute.regions.get",
    "compute.reservations.get",
    "compute.resourcePolicies.create",
    "iam.serviceAccounts.actAs",
)
"""What `ptctl cluster` calls."""
_METRICS = {"v4": ("_V4",), "v5e": ("LITE_PODSLICE_V5",), "v5p": ("V5P",), "v6e": ("V6E",), "tpu7x": ("TPU7X", "V7X"),
            "h100": ("H100_GPUS",), "h100-mega": ("H100_MEGA_GPUS",), "l4": ("L4_GPUS",), "a100": ("A100_GPUS",),
            "a100-80gb": ("A100_80GB_GPUS",)}  # fmt: skip
"""How the Compute API's regional quotas name a generation; Google keeps some in Cloud Quotas only."""
_OF_NETWORKS = ("compute.networks.create", "compute.subnetworks.create", "compute.firewalls.create")
"""What it calls besides for GPU machines with several NICs."""
_QUOTA_PAGE = "https://console.cloud.google.com/iam-admin/quotas"


def permissions(context: CheckContext) -> Iterator[Finding]:
    """Yield the permissions in the project that the caller lacks."""
    if context.google is None:
        return
    project = context.google.gke.project
    needed = (*_PERMISSIONS, *(_OF_NETWORKS if context.chips and context.chips.fabric else ()))
    granted = context.google.compute.granted(project, needed)
    missing = [each for each in needed if each not in granted]
    if missing:
        yield warning(
            "google", f"in project {project} you lack {', '.join(missing)}",
            "roles/container.admin, roles/compute.viewer, roles/iam.serviceAccountUser on the nodes' service account",
        )  # fmt: skip
    else:
        yield ok("google", f"you have what `ptctl cluster` needs in project {project}")


def cluster(context: CheckContext) -> Iterator[Finding]:
    """Yield what is wrong with the cluster as GKE sees it."""
    if context.google is None:
        return
    view = context.google.cluster
    raw = view.raw
    if view.state not in ("RUNNING", "RECONCILING"):
        yield error("google", f"cluster {view.name} is {view.state}: {view.message or 'GKE gives no reason'}")
    update = f"gcloud container clusters update {view.name} --location {view.location}"
    if not raw.workload_identity_config.workload_pool:
        yield error(
            "google",
            "Workload Identity is off: neither the operator nor trainers have a Google account",
            f"{update} --workload-pool={context.google.gke.project}.svc.id.goog",
        )
    for pool in view.pools:
        for failure in pool.failures:
            yield warning("google", f"node pool {pool.name}: {failure.code}: {failure.message}")
    if view.state == "RUNNING" and raw.workload_identity_config.workload_pool:
        yield ok("google", f"cluster {view.name} is RUNNING with Workload Identity, {len(view.pools)} node pools")


def quota(context: CheckContext) -> Iterator[Finding]:
    """Yield what is free of the region's quotas for the requested chips."""
    if context.google is None or context.chips is None:
        return
    gke, chips = context.google.gke, context.chips
    region = region_of(context.zone or gke.location)
    body = context.google.compute.request("GET", f"projects/{gke.project}/regions/{region}")
    names = _METRICS.get(chips.generation, ())
    listed = {str(each.get("metric")): each for each in body.get("quotas") or []}
    rows = [
        each
        for metric, each in listed.items()
        if any(name in metric for name in names) and not metric.startswith("COMMITTED")
    ]
    if not rows:
        yield warning("quota", f"no quota of {chips.generation} among those of {region} that the Compute API lists",
                      f"look in {_QUOTA_PAGE}; a reservation needs none")  # fmt: skip
    for each in rows:
        free = float(each.get("limit") or 0) - float(each.get("usage") or 0)
        text = f"{each['metric']} in {region}: {free:g} of {float(each.get('limit') or 0):g} free"
        if free < chips.total_chips:
            yield warning("quota", f"{text}, {chips.describe()} needs {chips.total_chips}",
                          f"ask for more in {_QUOTA_PAGE}; a reservation needs none")  # fmt: skip
        else:
            yield ok("quota", text)


def reservation(context: CheckContext) -> Iterator[Finding]:
    """Yield the reservation's state and what is free of it."""
    if context.google is None or not context.reservation:
        return
    yield _reservation(context, context.google)


def _reservation(context: CheckContext, google: Google) -> Finding:
    project, path = split(context.reservation, google.gke.project)
    zone = context.zone or google.gke.location
    try:
        body = google.compute.request("GET", f"projects/{project}/zones/{zone}/{path}")
    except MissingInCloudError:
        return error("reservation", f"{context.reservation} does not exist in {zone} of project {project}",
                     "name its zone with --zone; a shared one by projects/OWNER/reservations/NAME")  # fmt: skip
    body = body.get("resource") or body
    state = str(body.get("status") or "unknown")
    if state != "READY":
        return error("reservation", f"{context.reservation} is {state}", "only READY reservations give nodes")
    numbers = counts(body)
    if numbers is None:
        return warning("reservation", f"{context.reservation} is READY; Google does not say how much of it is free")
    hosts, used = numbers
    text = f"{context.reservation} is READY, {max(0, hosts - used)} of {hosts} hosts free"
    if context.chips is not None and hosts - used < context.chips.total_vms:
        return warning("reservation", f"{text}, {context.chips.describe()} needs {context.chips.total_vms}",
                       "wait for jobs to end, or add another entry to `capacity`")  # fmt: skip
    return ok("reservation", text)
