"""Google's side: what the caller may do, the cluster itself, quotas of a type, and a reservation's state."""

from __future__ import annotations

from collections.abc import Iterator

from ptctl.cluster.cloud.cloud_errors import MissingInCloudError
from ptctl.cluster.definition.spec import region_of
from ptctl.cluster.doctor.finding import Finding, Google, Patient, error, ok, warning
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
_METRICS = {"v4": ("_V4",), "v5e": ("LITE_PODSLICE_V5",), "v5p": ("V5P",), "v6e": ("V6E",), "tpu7x": ("TPU7X", "V7X")}
"""How the Compute API's regional quotas name a generation; Google keeps some in Cloud Quotas only."""
_QUOTA_PAGE = "https://console.cloud.google.com/iam-admin/quotas"


def permissions(patient: Patient) -> Iterator[Finding]:
    """Yield the permissions in the project that the caller lacks."""
    if patient.google is None:
        return
    project = patient.google.place.project
    granted = patient.google.compute.granted(project, _PERMISSIONS)
    missing = [each for each in _PERMISSIONS if each not in granted]
    if missing:
        yield warning(
            "google", f"in project {project} you lack {', '.join(missing)}",
            "roles/container.admin, roles/compute.viewer, roles/iam.serviceAccountUser on the nodes' service account",
        )  # fmt: skip
    else:
        yield ok("google", f"you have what `ptctl cluster` needs in project {project}")


def cluster(patient: Patient) -> Iterator[Finding]:
    """Yield what is wrong with the cluster as GKE sees it."""
    if patient.google is None:
        return
    there = patient.google.cluster
    raw = there.raw
    if there.state not in ("RUNNING", "RECONCILING"):
        yield error("google", f"cluster {there.name} is {there.state}: {there.message or 'GKE gives no reason'}")
    update = f"gcloud container clusters update {there.name} --location {there.location}"
    if not raw.workload_identity_config.workload_pool:
        yield error(
            "google",
            "Workload Identity is off: neither the operator nor trainers have a Google account",
            f"{update} --workload-pool={patient.google.place.project}.svc.id.goog",
        )
    for pool in there.pools:
        for failure in pool.failures:
            yield warning("google", f"node pool {pool.name}: {failure.code}: {failure.message}")
    if there.state == "RUNNING" and raw.workload_identity_config.workload_pool:
        yield ok("google", f"cluster {there.name} is RUNNING with Workload Identity, {len(there.pools)} node pools")


def quota(patient: Patient) -> Iterator[Finding]:
    """Yield what the region's quotas leave for the chips in question."""
    if patient.google is None or patient.chips is None:
        return
    place, chips = patient.google.place, patient.chips
    region = region_of(patient.zone or place.location)
    body = patient.google.compute.request("GET", f"projects/{place.project}/regions/{region}")
    marks = _METRICS.get(chips.generation, ())
    rows = [each for each in body.get("quotas") or [] if any(mark in str(each.get("metric")) for mark in marks)]
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


def reservation(patient: Patient) -> Iterator[Finding]:
    """Yield the reservation's state and what is free of it."""
    if patient.google is None or not patient.reservation:
        return
    yield _reservation(patient, patient.google)


def _reservation(patient: Patient, google: Google) -> Finding:
    project, path = split(patient.reservation, google.place.project)
    zone = patient.zone or google.place.location
    try:
        body = google.compute.request("GET", f"projects/{project}/zones/{zone}/{path}")
    except MissingInCloudError:
        return error("reservation", f"{patient.reservation} does not exist in {zone} of project {project}",
                     "name its zone with --zone; a shared one by projects/OWNER/reservations/NAME")  # fmt: skip
    body = body.get("resource") or body
    state = str(body.get("status") or "unknown")
    if state != "READY":
        return error("reservation", f"{patient.reservation} is {state}", "only READY reservations give nodes")
    numbers = counts(body)
    if numbers is None:
        return warning("reservation", f"{patient.reservation} is READY; it does not tell how much of it is free")
    hosts, used = numbers
    text = f"{patient.reservation} is READY, {max(0, hosts - used)} of {hosts} hosts free"
    if patient.chips is not None and hosts - used < patient.chips.total_vms:
        return warning("reservation", f"{text}, {patient.chips.describe()} needs {patient.chips.total_vms}",
                       "wait for jobs to end, or add another entry to `capacity`")  # fmt: skip
    return ok("reservation", text)
