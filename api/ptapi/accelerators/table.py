"""TPU generations and their usual slices, loaded on first use.

The numbers are data (`accelerators.json`), condensed from the survey by `scripts/make_accelerators.py`.
"""

import json
import math
from functools import cache
from importlib import resources
from typing import TypedDict


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
    """Facts of one TPU generation, per chip unless the name says otherwise."""

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
    peakBf16Tflops: float
    iciGbytesPerSecond: float | None
    dcnGbitsPerSecond: float | None
    machines: list[Machine]
    topologies: list[str]


def names(generation: str) -> list[str]:
    """Return the canonical names of a generation's usual slices, smallest first."""
    return [name_of(generation, topology) for topology in table()[generation]["topologies"]]


def sizes(generation: str) -> list[int]:
    """Return the numbers in those names."""
    facts = table()[generation]
    return [chip_count(topology) * facts["coresPerChip"] for topology in facts["topologies"]]


@cache
def table() -> dict[str, Generation]:
    """Return the known TPU generations."""
    text = resources.files("ptapi.accelerators").joinpath("accelerators.json").read_text(encoding="utf-8")
    table: dict[str, Generation] = json.loads(text)
    return table


@cache
def single_host_types() -> tuple[str, ...]:
    """Return the names of slices that fit on one machine, aliases and shapes included: `v5p-8`, `v6e-2x2`, …."""
    return tuple(
        f"{family}-{size}"
        for facts in table().values()
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


def chip_count(topology: str) -> int:
    """Return the chips of a shape: the product of its dimensions."""
    return math.prod(int(dim) for dim in topology.split("x"))


def name_of(generation: str, topology: str) -> str:
    """Return the canonical name of a generation's slice with these chips."""
    facts = table()[generation]
    return f"{facts['names'][0]}-{chip_count(topology) * facts['coresPerChip']}"
