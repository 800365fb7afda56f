"""TPU generations and their usual slices, and families of GPUs and their machines, loaded on first use.

The numbers are data: `accelerators.json`, condensed from the survey by `scripts/make_accelerators.py`, and `gpus.json`,
written by hand, each figure with its source. A family of GPUs is a generation whose shapes have one side: the GPUs of
one machine, or of several whole ones.
"""

import json
import math
from functools import cache
from importlib import resources
from typing import Any, Literal, TypedDict

Kind = Literal["tpu", "gpu"]
Fabric = Literal["", "tcpxo", "rdma"]
"""How GPUs of several machines reach each other: GPUDirect-TCPXO, GPUDirect RDMA over RoCE, or plain TCP."""


class Machine(TypedDict):
    """A machine type, its chips, and Pathways' name for it (None: not supported by Pathways).

    vcpus, memoryGb: of the whole machine, as hostSource says; None: no source was found.
    """

    type: str
    chips: int
    pathways: str | None
    vcpus: int | None
    memoryGb: int | None
    hostSource: str | None


class Generation(TypedDict):
    """Facts of one generation of TPUs or family of GPUs, per chip unless the name says otherwise.

    iciGbytesPerSecond: of the links between the chips of a slice or machine (ICI, NVLink), both directions together.
    usableGib: memory that programs may use, where a table says so.
    """

    kind: Kind
    names: list[str]
    gkeAccelerator: str
    coresPerChip: int
    jaxDevicesPerChip: int
    containersPerVm: int
    workloadPolicy: bool
    dims: int
    anyOrder: bool
    maxChips: int
    hbmGib: int
    hbmGbytesPerSecond: int
    usableGib: float | None
    peakBf16Tflops: float
    peakFp8Tflops: float | None
    iciGbytesPerSecond: float | None
    dcnGbitsPerSecond: float | None
    fabric: Fabric
    machines: list[Machine]
    topologies: list[str]


GPU_MEMORY_SHARE = 0.9
"""Share of a GPU's memory that JAX takes (XLA_PYTHON_CLIENT_MEM_FRACTION): CUDA's context, cuDNN's workspaces and
NCCL's buffers live in the rest. JAX-Toolbox, docs/GPU_performance.md: 0.9 or 0.8."""


def names(generation: str) -> list[str]:
    """Return the canonical names of a generation's usual slices, smallest first."""
    return [name_of(generation, topology) for topology in table()[generation]["topologies"]]


def sizes(generation: str) -> list[int]:
    """Return the numbers in those names."""
    facts = table()[generation]
    return [chip_count(topology) * facts["coresPerChip"] for topology in facts["topologies"]]


@cache
def table() -> dict[str, Generation]:
    """Return the known generations of TPUs, then the families of GPUs."""
    tpus = {name: _tpu(row) for name, row in _read("accelerators.json").items()}
    return tpus | {name: _gpu(row) for name, row in _read("gpus.json").items()}


def gpu_sources() -> dict[str, dict[str, str]]:
    """Return where the figures of each family of GPUs were read."""
    return {name: row["sources"] for name, row in _read("gpus.json").items()}


def _read(file: str) -> dict[str, Any]:
    rows: dict[str, Any] = json.loads(resources.files("ptapi.accelerators").joinpath(file).read_text(encoding="utf-8"))
    return rows


def _tpu(row: dict[str, Any]) -> Generation:
    generation: Generation = {**row, "kind": "tpu", "usableGib": None, "peakFp8Tflops": None, "fabric": ""}  # type: ignore[typeddict-item]
    return generation


def _gpu(row: dict[str, Any]) -> Generation:
    return {
        "kind": "gpu",
        "names": row["names"],
        "gkeAccelerator": row["gkeAccelerator"],
        "coresPerChip": 1,
        "jaxDevicesPerChip": 1,
        "containersPerVm": 1,
        "workloadPolicy": False,
        "dims": 1,
        "anyOrder": False,
        "maxChips": row["sizes"][-1],
        "hbmGib": row["hbmGib"],
        "hbmGbytesPerSecond": row["hbmGbytesPerSecond"],
        "usableGib": round(GPU_MEMORY_SHARE * row["memoryMib"] / 1024, 2),
        "peakBf16Tflops": row["peakBf16Tflops"],
        "peakFp8Tflops": row["peakFp8Tflops"],
        "iciGbytesPerSecond": row["linkGbytesPerSecond"],
        "dcnGbitsPerSecond": row["networkGbitsPerSecond"],
        "fabric": row["fabric"],
        "machines": [_gpu_machine(each, row["sources"]["machines"]) for each in row["machines"]],
        "topologies": [str(size) for size in row["sizes"]],
    }


def _gpu_machine(row: dict[str, Any], source: str) -> Machine:
    return {
        "type": row["type"],
        "chips": row["chips"],
        "pathways": None,
        "vcpus": row["vcpus"],
        "memoryGb": row["memoryGb"],
        "hostSource": source,
    }


@cache
def gpu_families() -> tuple[str, ...]:
    """Return the names of families of GPUs, aliases included."""
    return tuple(name for facts in table().values() if facts["kind"] == "gpu" for name in facts["names"])


@cache
def single_host_types() -> tuple[str, ...]:
    """Return the names of TPU slices that fit on one machine, aliases and shapes included: `v5p-8`, `v6e-2x2`, …."""
    return tuple(
        f"{family}-{size}"
        for facts in table().values()
        if facts["kind"] == "tpu"
        for chips in (machine["chips"] for machine in facts["machines"])
        for topology in facts["topologies"]
        if chip_count(topology) == chips
        for family in facts["names"]
        for size in (chips * facts["coresPerChip"], topology)
    )


@cache
def families() -> dict[str, str]:
    """Return the generation of every family name, aliases included."""
    return {name: generation for generation, facts in table().items() for name in facts["names"]}


def family_of(type: str) -> tuple[str, str]:
    """Split a type at its number or shape: `v5p-4x4x4` to `v5p` and `4x4x4`, `rtx-pro-6000-1` to its name and `1`.

    A name alone has no number: `rtx-pro-6000`, `v5p`.
    """
    family, _, size = ("", "", "") if type in families() else type.rpartition("-")
    return (family, size) if family else (type, "")


def is_gpu_type(type: str) -> bool:
    """Return True for the name of GPUs, whether they are sold in that number or not."""
    return family_of(type)[0] in gpu_families()


def chip_count(topology: str) -> int:
    """Return the chips of a shape: the product of its dimensions."""
    return math.prod(int(dim) for dim in topology.split("x"))


def name_of(generation: str, topology: str) -> str:
    """Return the canonical name of a generation's slice with these chips."""
    facts = table()[generation]
    return f"{facts['names'][0]}-{chip_count(topology) * facts['coresPerChip']}"
