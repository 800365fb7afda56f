"""`ptctl accelerators`: types as rows, pages and documents; everything from `ptapi.accelerators`' table."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from ptapi import accelerators
from ptapi.accelerators import Slice
from ptapi.accelerators.table import families
from ptapi.errors import SpecError
from ptapi.text import kubectl_yaml
from ptctl.errors import InputError
from ptctl.jobs.definition.file import check, read_with_changes
from ptctl.planning import preflight
from ptctl.ui.app import App
from ptctl.ui.console import Console
from ptctl.ui.table import table

Row = dict[str, Any]
_LABELS = {
    "type": "Type",
    "generation": "Generation",
    "aliases": "Aliases",
    "chips": "Chips",
    "hosts": "Hosts",
    "chipsPerHost": "Chips/host",
    "topology": "Topology",
    "hbmGibPerChip": "HBM GiB/chip",
    "hbmGib": "HBM GiB",
    "tensorCores": "TensorCores",
    "jaxDevices": "JAX devices",
    "machineType": "Machine type",
    "hostVcpus": "Host vCPUs",
    "hostMemoryGb": "Host memory GB",
    "gkeAccelerator": "GKE accelerator",
    "pathwaysInstanceType": "Pathways type",
    "bf16TflopsPerChip": "bf16 TFLOP/s/chip",
    "fp8TflopsPerChip": "fp8 TFLOP/s/chip",
    "fabric": "Network of GPUs",
    "hbmGbytesPerSecondPerChip": "HBM GB/s/chip",
    "slices": "Slices",
    "peakGibPerChip": "Peak GiB/chip",
    "availableGibPerChip": "Of",
    "changes": "Changes",
}
"""A row's keys, as programs read them, and what people read."""
_COLUMNS = ("type", "chips", "hosts", "topology", "hbmGibPerChip", "machineType")
_MORE = ("hbmGib", "jaxDevices", "bf16TflopsPerChip", "gkeAccelerator", "aliases")
_FITTING = (*_COLUMNS, "slices", "peakGibPerChip", "availableGibPerChip", "changes")
_GIB = 2**30


def show_types(console: Console, generation: str | None, form: str | None) -> None:
    """Print every type, or those of a generation, smallest first."""
    wanted = accelerators.table() if generation is None else [_generation(generation)]
    rows = [_row(accelerators.resolve(name)) for each in wanted for name in accelerators.names(each)]
    _show(console, rows, _COLUMNS + _MORE if form == "wide" else _COLUMNS, form)


def show_fitting(app: App, filename: str, assignments: Sequence[str], generation: str | None, form: str | None) -> int:
    """Print the smallest type of each generation that holds a job; return the exit code."""
    wanted = None if generation is None else _generation(generation)
    job = check(read_with_changes(filename, assignments), filename)
    code, options = preflight.smallest(app, job)
    if options is None:
        return code
    rows = [_fitting(option, job.model_dump(by_alias=True, exclude_unset=True)["spec"]) for option in options]
    chosen = [row for row in rows if wanted in (None, row["generation"])]
    _show(app.console, chosen, _FITTING + _MORE if form == "wide" else _FITTING, form)
    same = "".join(f" --set {shlex.quote(assignment)}" for assignment in assignments)
    if not chosen:
        app.console.say(f"{job.metadata.name}: no type {'' if wanted is None else f'of {wanted} '}holds it")
        app.console.say(f"hint: `ptctl plan fit -f {filename}{same}` finds the smallest change that makes it fit")
        return 1
    app.console.say(
        f"memory by the formula; `ptctl plan -f {filename}{same} --set accelerator.type=TYPE` asks the compiler"
    )
    return 0


def describe_type(console: Console, type: str, form: str | None) -> None:
    """Print one type: all that the table has of it."""
    try:
        row = _row(accelerators.resolve(type))
    except SpecError as error:
        raise SpecError([replace(finding, field="TYPE") for finding in error.findings]) from error
    if form is not None:
        console.data(row["type"] if form == "name" else _document(row, form))
        return
    lines = [(_LABELS[key] + ":", _cell(value)) for key, value in row.items() if value]
    width = max(len(label) for label, _ in lines)
    console.data("\n".join(f"{label:{width}}  {value}" for label, value in lines))


def _generation(name: str) -> str:
    known = families()
    if name.lower() in known:
        return known[name.lower()]
    close = get_close_matches(name.lower(), known, 1, 0.5)
    raise InputError(
        f"--generation {name!r}: accepted: {', '.join(known)}", f"did you mean {close[0]}?" if close else ""
    )


def _row(each: Slice) -> Row:
    """Return what is known of a type; None: not published, or nothing that virtual devices have."""
    chip, host = each.chip, each.host
    return {
        "type": each.name,
        "generation": each.generation,
        "aliases": _aliases(each),
        "chips": each.chips,
        "hosts": each.vms,
        "chipsPerHost": each.chips_per_vm,
        "topology": each.topology or None,
        "hbmGibPerChip": chip and chip.hbm_gib,
        "hbmGib": chip and chip.hbm_gib * each.chips,
        "tensorCores": each.tensorcores or None,
        "jaxDevices": each.devices,
        "machineType": each.machine_type or None,
        "hostVcpus": host and host.vcpus,
        "hostMemoryGb": host and host.memory_gb,
        "gkeAccelerator": each.gke_accelerator or None,
        "pathwaysInstanceType": each.pathways_instance_type,
        "bf16TflopsPerChip": chip and chip.peak_bf16_tflops,
        "fp8TflopsPerChip": chip and chip.peak_fp8_tflops,
        "fabric": each.fabric or None,
        "hbmGbytesPerSecondPerChip": chip and chip.hbm_gbytes_per_s,
    }


def _aliases(each: Slice) -> list[str]:
    """Return the other names of a type: its families' with its number, and its shape."""
    if each.is_cpu:
        return []
    size = each.name.rpartition("-")[2]
    first, *others = accelerators.table()[each.generation]["names"]
    return [*(f"{family}-{size}" for family in others), *([f"{first}-{each.topology}"] if each.topology else [])]


def _fitting(option: Row, spec: Row) -> Row:
    """Return the row of a type that holds a job, with what else of the job must change."""
    settings = dict(option["settings"])
    accelerator = settings.pop("accelerator")
    per_chip = option["devices_per_chip"] / _GIB
    return {
        **_row(accelerators.resolve(accelerator["type"])),
        "slices": accelerator["slices"],
        "peakGibPerChip": round(option["peak"] * per_chip, 1),
        "availableGibPerChip": round(option["available"] * per_chip, 1),
        "changes": _changes(settings, spec),
    }


def _changes(settings: Row, spec: Row) -> list[str]:
    """Return words for --set: what differs from the job's own training, splits over one device aside."""
    own = spec.get("training") or {}
    words = []
    for path, value in settings.items():
        name = path.removeprefix("training.")
        before = own.get(name)
        is_default = name == "parallelism" and not before and set(value.values()) == {1}
        if value != before and not is_default:
            axes = ", ".join(f"{axis}: {size}" for axis, size in value.items()) if isinstance(value, dict) else ""
            words.append(f"'{path}={{{axes}}}'" if axes else f"{path}={value}")
    return words


def _show(console: Console, rows: list[Row], columns: Sequence[str], form: str | None) -> None:
    if form in ("json", "yaml"):
        console.data(_document(rows, form))
    elif rows and form == "name":
        console.data("\n".join(row["type"] for row in rows))
    elif rows:
        headers = [_LABELS[key].upper() for key in columns]
        console.data(table(headers, [[_cell(row[key]) for key in columns] for row in rows]))


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(value)
    return "-" if value is None else str(value)


def _document(body: Row | list[Row], form: str) -> str:
    return json.dumps(body, indent=2) if form == "json" else kubectl_yaml.write(body).rstrip("\n")
