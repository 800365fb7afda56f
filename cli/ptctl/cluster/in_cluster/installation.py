"""`ptctl cluster install` and `adapt`: look, then apply what is missing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ptapi.accelerators import resolve
from ptapi.errors import SpecError
from ptctl.cluster.cloud.settings import CloudSettings
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
from ptoperator.settings import gpu_networks


@dataclass(frozen=True)
class Destination:
    """A cluster to install in. gke: its name on GKE, where that is known. notes: what is missing on GKE's side."""

    kube: Kube
    gke: GkeCluster | None
    notes: tuple[str, ...] = ()


def install(app: App, target: Target, name: str | None, flags: Mapping[str, Any]) -> None:
    """Install the operator and Kueue's queues. Raises CliError where others have installed one already."""
    if flags["dry_run"]:
        _print(app, objects.all_objects(values(flags, _known_gke(name, flags))), flags["output"])
        return
    destination = find_destination(app, target, name, flags)
    present = survey.survey(destination.kube)
    if present.operator is not None and present.is_operator_of_others:
        raise CliError(
            f"posttrain is installed in {present.operator.namespace} by {present.operator.manager or 'others'}",
            "upgrade it there (docs/guides/install.md), or uninstall that release first; its jobs stay",
        )
    _carry_out(app, destination, present, flags, values(flags, destination.gke))


def adapt(app: App, target: Target, name: str | None, flags: Mapping[str, Any]) -> None:
    """Install what is missing in a cluster, leave everything else, and say what is present."""
    destination = find_destination(app, target, name, flags)
    present = survey.survey(destination.kube)
    app.console.say(_summary(present))
    for note in destination.notes:
        app.console.warn(note)
    if flags["dry_run"]:
        _print(app, objects.all_objects(values(flags, destination.gke)), flags["output"])
        return
    _carry_out(app, destination, present, flags, values(flags, destination.gke))


def find_destination(app: App, target: Target, name: str | None, flags: Mapping[str, Any]) -> Destination:
    """Return the cluster of this name on GKE, or the kubeconfig's."""
    if name is None:
        kube = app.connect(target)
        return Destination(kube, gke_of_context(kube.access.context))
    from ptctl.cluster.cloud.gke import find, open_gke
    from ptctl.cluster.kubeconfig import kube_of

    settings = CloudSettings.from_env()
    project = settings.project_for(flags["project"])
    cluster = find(open_gke(settings), project, name, flags["location"])
    notes = tuple(_gke_notes(cluster.raw, name))
    return Destination(kube_of(settings, cluster), GkeCluster(project, cluster.location, name), notes)


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
        gpu_trainer_image=flags["gpu_trainer_image"],
        gpu_networks=_gpu_networks(flags["gpu_networks"]),
    )


def _gpu_networks(text: str) -> str:
    try:
        gpu_networks.parse(text)
    except gpu_networks.GpuNetworksError as error:
        raise InputError(f"--gpu-networks: {error}") from error
    return text


def _quota(text: str) -> Quota:
    kind, sign, slices = text.partition("=")
    if not sign or not slices.isdigit() or not int(slices):
        raise InputError(f"--quota: {text!r}; accepted: TYPE=SLICES, as v6e-16=2")
    try:
        accelerator = resolve(kind, slices=int(slices))
    except SpecError as error:
        raise InputError(str(error).replace("spec.accelerator.type", "--quota")) from error
    if accelerator.is_cpu:
        raise InputError(f"--quota: {kind!r} has no chips; accepted: TPUs and GPUs, with a size")
    return Quota(accelerator)


def _known_gke(name: str | None, flags: Mapping[str, Any]) -> GkeCluster | None:
    """Return the cluster as the flags name it, for a dry run, which sends no request."""
    if name is None:
        return None
    return GkeCluster(
        flags["project"] or CloudSettings.from_env().project or "PROJECT", flags["location"] or "LOCATION", name
    )


def _carry_out(app: App, destination: Destination, present: Survey, flags: Mapping[str, Any], wanted: Values) -> None:
    _refuse_old(present)
    applier = Applier(destination.kube)
    results = [*_third_party(applier, present, flags)]
    _refuse_missing(present, flags, wanted)
    made = [] if present.is_operator_of_others else objects.operator_objects(wanted)
    results += [
        applier.apply(body) for body in [*made, *objects.queue_objects(wanted), *objects.network_objects(wanted)]
    ]
    rows = [[each.kind, each.name, each.outcome, each.reason] for each in results]
    app.console.data(table(["KIND", "NAME", "RESULT", "MANAGED BY"], rows))
    app.console.say("next: ptctl cluster doctor")


def _third_party(applier: Applier, present: Survey, flags: Mapping[str, Any]) -> list[Applied]:
    """Apply JobSet and Kueue where the user names manifests and the cluster has none; never over another version."""
    results = []
    for flag, controller in (("jobset_manifests", present.jobset), ("kueue_manifests", present.kueue)):
        if flags[flag] and controller is None:
            bodies = third_party.manifests(f"--{flag.replace('_', '-')}", flags[flag])
            results += [applier.apply(body) for body in bodies]
        elif flags[flag]:
            results.append(Applied("Controller", flag.partition("_")[0], "left alone", "it is installed already"))
    return results


def _refuse_old(present: Survey) -> None:
    version = survey.version_of(present.kubernetes)
    if version is not None and version < survey.MIN_KUBERNETES:
        raise CliError(f"Kubernetes {present.kubernetes}; accepted: 1.30 or newer", "upgrade the control plane")


def _refuse_missing(present: Survey, flags: Mapping[str, Any], wanted: Values) -> None:
    """Refuse to continue without JobSet, or without Kueue where quotas are requested."""
    if not present.has_jobset and not flags["jobset_manifests"]:
        raise CliError(
            "JobSet is not installed in this cluster, and is no part of posttrain",
            f"--jobset-manifests {survey.JOBSET_URL} fetches and applies it; or pass a file of your own",
        )
    if wanted.quotas and not present.has_kueue and not flags["kueue_manifests"]:
        raise CliError(
            "--quota: Kueue is not installed in this cluster, and is no part of posttrain",
            f"--kueue-manifests {survey.KUEUE_URL} fetches and applies it; or leave out --quota",
        )


def _summary(present: Survey) -> str:
    rows = [["Kubernetes", present.kubernetes, "", ""]]
    for title, controller, is_there in (
        ("JobSet", present.jobset, present.has_jobset),
        ("Kueue", present.kueue, present.has_kueue),
        ("posttrain", present.operator, present.our_crd is not None),
    ):
        if controller is not None:
            state = f"{controller.ready} of {controller.wanted} ready"
            rows.append([title, controller.version, state, f"{controller.namespace} {controller.manager}".strip()])
        else:
            rows.append([title, "", "its kinds are there" if is_there else "not there", ""])
    return table(["THERE", "VERSION", "STATE", "WHERE"], rows)


def _gke_notes(raw: Any, name: str) -> list[str]:
    """Return what is missing of the cluster itself. None of it is changed: it belongs to others."""
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
