"""`ptctl cluster create`: from flags to a request, and its dry run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from ptapi.accelerators import resolve
from ptapi.errors import SpecError
from ptctl.cluster.cloud.settings import CloudSettings
from ptctl.cluster.definition import spec as specs
from ptctl.cluster.definition.gpu_networks import KINDS
from ptctl.cluster.definition.requests import network_setting, requests
from ptctl.cluster.definition.spec import ChipPools, ClusterSpec, CpuPool, Network
from ptctl.errors import InputError
from ptctl.ui.app import App
from ptctl.ui.output import to_yaml
from ptoperator.settings import gpu_networks


def create_cluster(app: App, name: str, flags: Mapping[str, Any]) -> None:
    """Create the cluster that the flags describe, or print the requests."""
    settings = CloudSettings.from_env()
    spec = spec_from_flags(name, flags)
    if flags["dry_run"] and flags["terraform"]:
        raise InputError("--dry-run: set with --terraform; accepted: one of them")
    if flags["dry_run"]:
        print_requests(app, replace(spec, project=flags["project"] or settings.project or "PROJECT"), flags["output"])
        return
    if flags["terraform"]:
        write_module(app, replace(spec, project=settings.project_for(flags["project"])), Path(flags["terraform"]))
        return
    from ptctl.cluster.cloud.compute import open_compute
    from ptctl.cluster.cloud.gke import open_gke
    from ptctl.cluster.creation import Creation

    spec = replace(spec, project=settings.project_for(flags["project"]))
    again = command_line(spec, flags)
    creation = Creation(open_gke(settings), open_compute(settings), app.console, settings.poll_s)
    cluster = creation.run(spec, again)
    app.console.data(f"cluster {cluster.name} in {cluster.location} runs, {len(cluster.pools)} node pools")
    where = f"{spec.name} --project {spec.project} --location {spec.location}"
    app.console.say(f"next: ptctl cluster credentials {where}")
    say_networks(app, spec)


def say_networks(app: App, spec: ClusterSpec) -> None:
    """Say how jobs come to the networks of GPUs."""
    if spec.gpu_networks:
        app.console.say(f"then: ptctl cluster install … --gpu-networks '{network_setting(spec)}'")


def write_module(app: App, spec: ClusterSpec, folder: Path) -> None:
    """Write the module. Raises InputError for a file that is there and differs."""
    from ptctl.cluster.definition.terraform import module

    path, text = folder / "main.tf", module(spec)
    if path.exists() and path.read_text() != text:
        raise InputError(f"--terraform: {path} exists and differs; accepted: another directory", "or move that file")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    app.console.data(str(path))
    app.console.say(f"next: cd {folder} && terraform init && terraform plan")
    say_networks(app, spec)


def print_requests(app: App, spec: ClusterSpec, form: str) -> None:
    """Print every request of a new cluster, in order."""
    documents = [each.as_document() for each in requests(spec)]
    if form == "json":
        app.console.data(json.dumps(documents, indent=2))
    else:
        app.console.data("\n---\n".join(to_yaml(each) for each in documents))


def spec_from_flags(name: str, flags: Mapping[str, Any]) -> ClusterSpec:
    """Return the requested cluster; its project comes later. Raises InputError."""
    location, zones = specs.placed(flags["location"], flags["zone"])
    chips = _chips(flags, zones)
    return ClusterSpec(
        name=specs.checked_name(name),
        project="",
        location=location,
        zones=zones,
        channel=_channel(flags["release_channel"]),
        version=flags["gke_version"],
        network=_network(flags),
        cpu_pool=CpuPool(flags["cpu_machine"], flags["cpu_nodes"]),
        pathways_machine=flags["pathways_gce_machine_type"] if flags["enable_pathways"] else "",
        node_service_account=flags["node_service_account"],
        drivers=frozenset(driver for driver in specs.DRIVERS if flags[driver]),
        maintenance=specs.maintenance_window(
            flags["maintenance_window"],
            flags["maintenance_window_start"],
            flags["maintenance_window_end"],
            flags["maintenance_window_recurrence"],
        ),
        chips=chips,
        gpu_networks=_gpu_networks(flags["gpu_networks"], chips, zones),
        labels=_labels(flags["labels"]),
    )


def _chips(flags: Mapping[str, Any], zones: tuple[str, ...]) -> ChipPools | None:
    kind: str | None = flags["tpu_type"]
    if kind is None:
        alone = ("num_slices", "reservation", "spot", "flex", "on_demand")
        if given := next((name for name in alone if flags[name]), None):
            raise InputError(
                f"--{given.replace('_', '-')}: set without --tpu-type; accepted: both, or neither",
                "without --tpu-type the operator makes node pools for each job, by its `capacity`",
            )
        return None
    if len(zones) != 1:
        raise InputError(f"--zone: {len(zones)} zones with --tpu-type; accepted: one, where the chips are")
    slices = flags["num_slices"] or 1
    try:
        accelerator = resolve(kind)
        accelerator = accelerator if accelerator.is_gpu else resolve(kind, slices=slices)
    except SpecError as error:
        raise InputError(str(error).replace("spec.accelerator.type", "--tpu-type")) from error
    if accelerator.is_cpu:
        raise InputError(f"--tpu-type: {kind!r} has no chips; accepted: TPUs and GPUs, with a size")
    purchase = {name: flags[name] for name in ("reservation", "spot", "flex", "on_demand")}
    return ChipPools(accelerator, zones[0], specs.capacity_options(slices, **purchase))


def _gpu_networks(value: str | None, chips: ChipPools | None, zones: tuple[str, ...]) -> str:
    """Return which networks GPUs of several machines have: as the flag says, else those that the pools' need."""
    needed = chips.accelerator.fabric if chips else ""
    if value is None or value == "none":
        return needed if value is None else ""
    if value not in KINDS:
        try:
            gpu_networks.parse(value)
        except gpu_networks.GpuNetworksError as error:
            raise InputError(f"--gpu-networks: {error}", f"{', '.join(KINDS)} make them; none does without") from error
        return value
    if needed and value != needed:
        raise InputError(f"--gpu-networks: {value}; accepted with this --tpu-type: {needed}, none, or their list")
    if len(zones) != 1:
        raise InputError(f"--zone: {len(zones)} zones with --gpu-networks {value}; accepted: one, where the GPUs are")
    return value


def _channel(value: str) -> str:
    if value.lower() not in specs.CHANNELS:
        raise InputError(f"--release-channel: {value!r}; accepted: {', '.join(specs.CHANNELS)}")
    return value.lower()


def _network(flags: Mapping[str, Any]) -> Network:
    if flags["enable_private_endpoint"] and not flags["private"]:
        raise InputError("--enable-private-endpoint: set without --private; accepted: both", "add --private")
    return Network(
        name=flags["network"],
        subnetwork=flags["subnetwork"],
        is_private=flags["private"],
        has_private_endpoint=flags["enable_private_endpoint"],
        authorized=_address_blocks(flags["authorized_networks"]),
    )


def _address_blocks(values: tuple[str, ...]) -> tuple[str, ...]:
    blocks = tuple(each.strip() for value in values for each in value.split(","))
    for block in blocks:
        try:
            ip_network(block)
        except ValueError as error:
            raise InputError(f"--authorized-networks: {error}; accepted: 203.0.113.0/24") from error
    return blocks


def _labels(text: str) -> dict[str, str]:
    pairs = [each.partition("=") for each in text.split(",") if each]
    if wrong := next((key for key, sign, _ in pairs if not key or not sign), None):
        raise InputError(f"--labels: {wrong!r}; accepted: key=value,key=value")
    if ours := next((key for key, _, _ in pairs if key.startswith("posttrain-")), None):
        raise InputError(f"--labels: {ours!r} is one of ptctl's own; accepted: keys that do not begin with posttrain-")
    return {key: value for key, _, value in pairs}


def command_line(spec: ClusterSpec, flags: Mapping[str, Any]) -> str:
    """Return the command line that continues with this cluster: what was typed, with the project."""
    from ptctl.ui.command_line.typed import typed_words

    words = typed_words()
    has_project = any(word == "--project" or word.startswith("--project=") for word in words)
    return shlex.join(["ptctl", *words, *([] if has_project else ["--project", spec.project])])
