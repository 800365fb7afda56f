"""`ptctl cluster install` and `adapt`: look, then apply what lacks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ptapi.accelerators import resolve
from ptapi.errors import SpecError
from ptctl.cluster.cloud.site import Site
from ptctl.cluster.in_cluster import objects, survey, third_party
from ptctl.cluster.in_cluster.apply import Applied, Applier
from ptctl.cluster.in_cluster.objects import GkeCluster, Quota, Values
from ptctl.cluster.in_cluster.survey import Survey
from ptctl.errors import CliError, InputError
from ptctl.ui.app import App, Target
from ptctl.ui.output import stream
from ptctl.ui.table import table
from ptkube.client import Kube
from ptkube.resources import Manifest
from ptoperator.capacity.node_pools.pathways_head_pool import MAX_PATHWAYS_HEADS


@dataclass(frozen=True)
class Place:
    """A cluster to install in. gke: where it is known which of GKE's it is. notes: what GKE's side lacks."""

    kube: Kube
    gke: GkeCluster | None
    notes: tuple[str, ...] = ()


def install(app: App, target: Target, name: str | None, flags: Mapping[str, Any]) -> None:
    """Install the operator and what is asked for. Raises CliError where somebody else's installation is in the way."""
    if flags["dry_run"]:
        _print(app, objects.all_objects(values(flags, _known_gke(name, flags))), flags["output"])
        return
    place = find_place(app, target, name, flags)
    there = survey.survey(place.kube)
    if there.operator is not None and there.is_operator_of_others:
        raise CliError(
            f"posttrain is installed in {there.operator.namespace} by {there.operator.manager or 'somebody else'}",
            "upgrade it there (docs/guides/install.md), or uninstall that release first; its jobs stay",
        )
    _carry_out(app, place, there, flags, values(flags, place.gke))


def adapt(app: App, target: Target, name: str | None, flags: Mapping[str, Any]) -> None:
    """Install what a cluster lacks, leave everything else, and say what is there."""
    place = find_place(app, target, name, flags)
    there = survey.survey(place.kube)
    app.console.say(_summary(there))
    for note in place.notes:
        app.console.warn(note)
    if flags["dry_run"]:
        _print(app, objects.all_objects(values(flags, place.gke)), flags["output"])
        return
    _carry_out(app, place, there, flags, values(flags, place.gke))


def find_place(app: App, target: Target, name: str | None, flags: Mapping[str, Any]) -> Place:
    """Return the cluster of this name on GKE, or the kubeconfig's."""
    if name is None:
        kube = app.connect(target)
        return Place(kube, gke_of_context(kube.access.context))
    from ptctl.cluster.cloud.gke import find, open_gke
    from ptctl.cluster.kubeconfig import kube_of

    site = Site.from_env()
    project = site.project_for(flags["project"])
    cluster = find(open_gke(site), project, name, flags["location"])
    notes = tuple(_gke_notes(cluster.raw, name))
    return Place(kube_of(site, cluster), GkeCluster(project, cluster.location, name), notes)


def gke_of_context(context: str) -> GkeCluster | None:
    """Return the cluster that a context of gcloud's form names."""
    parts = context.split("_")
    return GkeCluster(*parts[1:]) if len(parts) == 4 and parts[0] == "gke" else None


def values(flags: Mapping[str, Any], gke: GkeCluster | None) -> Values:
    """Return the values of the installation. Raises InputError."""
    return Values(
        image=flags["image"],
        trainer_image=flags["trainer_image"],
        gke=gke,
        operator_account=flags["operator_service_account"],
        node_account=flags["node_service_account"],
        quotas=tuple(_quota(text) for text in flags["quota"]),
        queue_namespaces=flags["queue_namespace"] or ("default",),
    )


def _quota(text: str) -> Quota:
    kind, sign, slices = text.partition("=")
    if not sign or not slices.isdigit() or not int(slices):
        raise InputError(f"--quota: {text!r}; accepted: TYPE=SLICES, as v6e-16=2")
    try:
        accelerator = resolve(kind, slices=int(slices))
    except SpecError as error:
        raise InputError(str(error).replace("spec.accelerator.type", "--quota")) from error
    if accelerator.is_cpu:
        raise InputError(f"--quota: {kind!r} has no chips; accepted: v4, v5p, v5e, v6e and tpu7x, with a size")
    return Quota(accelerator)


def _known_gke(name: str | None, flags: Mapping[str, Any]) -> GkeCluster | None:
    """Return the cluster as the flags name it, for a dry run that asks nobody."""
    if name is None:
        return None
    return GkeCluster(flags["project"] or Site.from_env().project or "PROJECT", flags["location"] or "LOCATION", name)


def _carry_out(app: App, place: Place, there: Survey, flags: Mapping[str, Any], wanted: Values) -> None:
    _refuse_old(there)
    applier = Applier(place.kube)
    results = [*_third_party(applier, there, flags)]
    _refuse_missing(there, flags, wanted)
    made = [] if there.is_operator_of_others else objects.operator_objects(wanted)
    results += [applier.apply(body) for body in [*made, *objects.queue_objects(wanted)]]
    rows = [[each.kind, each.name, each.outcome, each.reason] for each in results]
    app.console.data(table(["KIND", "NAME", "RESULT", "MANAGED BY"], rows))
    app.console.say("next: ptctl cluster doctor")


def _third_party(applier: Applier, there: Survey, flags: Mapping[str, Any]) -> list[Applied]:
    """Apply JobSet and Kueue where the user names manifests and the cluster has none; never over another version."""
    results = []
    for flag, controller in (("jobset_manifests", there.jobset), ("kueue_manifests", there.kueue)):
        if flags[flag] and controller is None:
            bodies = third_party.manifests(f"--{flag.replace('_', '-')}", flags[flag])
            results += [applier.apply(body) for body in bodies]
        elif flags[flag]:
            results.append(Applied("Controller", flag.partition("_")[0], "left alone", "it is installed already"))
    return results


def _refuse_old(there: Survey) -> None:
    version = survey.version_of(there.kubernetes)
    if version is not None and version < survey.MIN_KUBERNETES:
        raise CliError(f"Kubernetes {there.kubernetes}; accepted: 1.30 or newer", "upgrade the control plane")


def _refuse_missing(there: Survey, flags: Mapping[str, Any], wanted: Values) -> None:
    """Refuse to go on without JobSet, or without Kueue where quotas are asked for."""
    if not there.has_jobset and not flags["jobset_manifests"]:
        raise CliError(
            "JobSet is not installed in this cluster, and posttrain does not bring it",
            f"--jobset-manifests {survey.JOBSET_URL} fetches and applies it; or a file of yours",
        )
    if wanted.quotas and not there.has_kueue and not flags["kueue_manifests"]:
        raise CliError(
            "--quota: Kueue is not installed in this cluster, and posttrain does not bring it",
            f"--kueue-manifests {survey.KUEUE_URL} fetches and applies it; or leave out --quota",
        )


def _summary(there: Survey) -> str:
    rows = [["Kubernetes", there.kubernetes, "", ""]]
    for title, controller, is_there in (
        ("JobSet", there.jobset, there.has_jobset),
        ("Kueue", there.kueue, there.has_kueue),
        ("posttrain", there.operator, there.our_crd is not None),
    ):
        if controller is not None:
            state = f"{controller.ready} of {controller.wanted} ready"
            rows.append([title, controller.version, state, f"{controller.namespace} {controller.manager}".strip()])
        else:
            rows.append([title, "", "its kinds are there" if is_there else "not there", ""])
    return table(["THERE", "VERSION", "STATE", "WHERE"], rows)


def _gke_notes(raw: Any, name: str) -> list[str]:
    """Return what the cluster itself lacks. Nothing of it is changed: it is somebody's."""
    update = f"gcloud container clusters update {name} --location {raw.location}"
    notes = []
    if not raw.workload_identity_config.workload_pool:
        notes.append(
            "Workload Identity is off, so pods have no Google account of their own\n"
            f"hint: {update} --workload-pool=PROJECT.svc.id.goog"
        )
    if not raw.addons_config.gcs_fuse_csi_driver_config.enabled:
        notes.append(
            "the Cloud Storage FUSE driver is off; jobs that mount buckets need it\n"
            f"hint: {update} --update-addons GcsFuseCsiDriver=ENABLED"
        )
    if not any(pool.name == "cpu-np" for pool in raw.node_pools):
        notes.append(
            "there is no node pool cpu-np for Pathways' heads; the operator makes it with the first Pathways job "
            f"(at most {MAX_PATHWAYS_HEADS} nodes)"
        )
    return notes


def _print(app: App, bodies: list[Manifest], form: str) -> None:
    if form == "json":
        app.console.data(json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies}, indent=2))
    else:
        app.console.data(stream(bodies))
