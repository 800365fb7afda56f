"""The accelerators, and the facts of one slice of each: chips, VMs, machine type, shape, speed.

Numbers have the meaning of GKE and XPK: `v5p-128` counts TensorCores (64 chips), `v6e-16` counts chips. Messages always
show the chips with the name, because other tools use the same string for other hardware. `cpu-N` is one VM with N
virtual devices, for laptops and CI. Left out: sub-slices, super-slices, single-VM forms of 8 chips, TPU v2, v3 and v8.

The one idea: facts per generation and the usual shapes are data (`ptapi.accelerators.table`); everything about one
slice follows from its generation and its shape.
"""

import difflib
import math
import re
from dataclasses import dataclass

from ptapi.accelerators.table import Generation, chip_count, families, name_of, names, sizes, table
from ptapi.errors import Finding, SpecError

__all__ = ["FAMILIES", "Generation", "Slice", "names", "resolve", "sizes", "table"]

CPU_MAX_DEVICES = 64
MAX_SLICES = 512
TYPE_FIELD = "spec.accelerator.type"
TOPOLOGY_FIELD = "spec.accelerator.topology"
SLICES_FIELD = "spec.accelerator.slices"
FAMILIES = "v4, v5p, v5litepod (v5e), v6e (trillium), tpu7x (ironwood), cpu"


@dataclass(frozen=True, kw_only=True)
class Slice:
    """One accelerator type, resolved. Counts are per slice; `total_…` are over all slices of the job.

    The defaults describe devices of a host, which are not sold by the slice.
    """

    name: str
    generation: str
    slices: int
    topology: str = ""
    chips: int
    tensorcores: int
    vms: int
    chips_per_vm: int
    machine_type: str = ""
    host_vcpus: int | None = None
    host_memory_gb: int | None = None
    gke_accelerator: str = ""
    pathways_instance_type: str | None = None
    multi_host: bool = False
    requires_workload_policy: bool = False
    parallel_containers: int = 1
    jax_devices_per_chip: int = 1
    hbm_gib: int | None = None
    hbm_gbytes_per_s: float | None = None
    peak_bf16_tflops: float | None = None
    ici_gbytes_per_s: float | None = None
    dcn_gbits_per_s: float | None = None

    @property
    def is_cpu(self) -> bool:
        """Return True if these are virtual devices of a host instead of TPU chips."""
        return self.generation == "cpu"

    @property
    def devices(self) -> int:
        """Return the number of JAX devices of one slice."""
        return self.chips * self.jax_devices_per_chip

    @property
    def total_chips(self) -> int:
        """Return the number of chips of the job."""
        return self.chips * self.slices

    @property
    def total_vms(self) -> int:
        """Return the number of VMs of the job: one pod each, if a VM runs one."""
        return self.vms * self.slices

    @property
    def total_devices(self) -> int:
        """Return the number of JAX devices of the job."""
        return self.devices * self.slices

    def describe(self) -> str:
        """Return the name with its chips, for messages: `v5p-128 (64 chips)`, `2 x v6e-16 (32 chips)`."""
        count = f"{self.name} ({_chips(self.generation, self.total_chips)})"
        return count if self.slices == 1 else f"{self.slices} x {count}"


def resolve(type: str, topology: str | None = None, slices: int = 1) -> Slice:
    """Resolve a type: `v5p-128`, an alias (`v5e-16`, `ironwood-128`), a shape (`v5p-4x4x4`), or `cpu-8`.

    Raises SpecError, with the nearest names and their chips, for a type that does not exist or does not fit.
    """
    family, _, size = type.partition("-")
    if family == "cpu":
        return _cpu(type, size, topology, slices)
    generation = families().get(family)
    if generation is None:
        raise _unknown_family(type)
    if re.fullmatch(r"[1-9][0-9]*(x[1-9][0-9]*)+", size):
        shape = _named_shape(type, generation, size, topology)
    elif re.fullmatch(r"[1-9][0-9]*", size):
        shape = _sized_shape(type, generation, int(size), topology)
    else:
        raise _unknown_size(type, generation, None)
    return _slice(generation, shape, _checked_slices(slices))


def _chips(generation: str, chips: int) -> str:
    unit = "virtual device" if generation == "cpu" else "chip"
    return f"{chips} {unit}{'' if chips == 1 else 's'}"


def _with_chips(generation: str, topology: str, family: str) -> str:
    """Return the name with its chips, `v5e-16 (16 chips)`, in the family name that the user wrote."""
    number = name_of(generation, topology).rpartition("-")[2]
    return f"{family}-{number} ({_chips(generation, chip_count(topology))})"


def _refuse(field: str, value: object, accepted: str, hint: str = "") -> SpecError:
    return SpecError([Finding(field, str(value), accepted, hint)])


def near_name(type: str) -> str | None:
    """Return the type that was probably meant: `V5P-128`, `v5p_128`, `v5p128` and `tpu-v5p-128` are v5p-128."""
    plain = type.lower().replace("_", "-").replace(" ", "-").removeprefix("cloud-").removeprefix("tpu-")
    family = max((name for name in [*families(), "cpu"] if plain.startswith(name)), key=len, default="")
    name = f"{family}-{plain.removeprefix(family).lstrip('-')}" if family else type
    try:
        return name if name != type and resolve(name) else None
    except SpecError:
        return None


def _unknown_family(type: str) -> SpecError:
    if nearest := near_name(type):
        return _refuse(TYPE_FIELD, type, "is not a known accelerator", f"did you mean {nearest}?")
    known = [*families(), "cpu"]
    parts = [type.partition("-")[0], *type.split("-")]
    similar = [name for part in parts for name in difflib.get_close_matches(part, known, n=3, cutoff=0.5)]
    examples = [_example(family) for family in dict.fromkeys(similar)]
    nearest = f"nearest: {', '.join(examples[:3])}" if examples else f"known families: {FAMILIES}"
    return _refuse(
        TYPE_FIELD, type, f"is not a known accelerator; {nearest}", f"a type is a family and a number, of {FAMILIES}"
    )


def _example(family: str) -> str:
    if family == "cpu":
        return "cpu-8 (8 virtual devices)"
    topology = table()[families()[family]]["topologies"][0]
    return _with_chips(families()[family], topology, family)


def _unknown_size(type: str, generation: str, size: int | None) -> SpecError:
    facts = table()[generation]
    family = type.partition("-")[0]
    at = len([count for count in sizes(generation) if size is not None and count < size])
    nearest = facts["topologies"][max(0, at - 1) : at + 1] if size is not None else facts["topologies"][:3]
    listed = ", ".join(_with_chips(generation, topology, family) for topology in nearest)
    unit = "chips" if facts["coresPerChip"] == 1 else "TensorCores, two per chip"
    return _refuse(TYPE_FIELD, type, f"does not exist; nearest: {listed}", f"the number in {family}-N counts {unit}")


def _sized_shape(type: str, generation: str, size: int, topology: str | None) -> str:
    facts = table()[generation]
    usual = dict(zip(sizes(generation), facts["topologies"], strict=True))
    if size not in usual:
        raise _unknown_size(type, generation, size)
    chips = size // facts["coresPerChip"]
    if topology is None:
        return usual[size]
    if chip_count(topology) != chips or not _is_valid(facts, topology):
        count = _chips(generation, chips)
        raise _refuse(TOPOLOGY_FIELD, topology, f"does not fit {type} ({count}); accepted: {_shapes(facts, chips)}")
    return topology


def _named_shape(type: str, generation: str, shape: str, topology: str | None) -> str:
    facts = table()[generation]
    if not _is_valid(facts, shape):
        fitting = _shapes(facts, chip_count(shape))
        if not fitting:
            raise _unknown_size(type, generation, chip_count(shape) * facts["coresPerChip"])
        raise _refuse(TYPE_FIELD, type, f"has a shape that does not exist; accepted for its chips: {fitting}")
    if topology not in (None, shape):
        raise _refuse(TOPOLOGY_FIELD, topology, f"differs from the shape in {type}; accepted: {shape}, or unset")
    return shape


def _is_valid(facts: Generation, topology: str) -> bool:
    """Return True if a slice of this shape exists: a usual one or, in 3D, whole cubes of 4x4x4."""
    if topology in facts["topologies"]:
        return True
    dims = [int(dim) for dim in topology.split("x")]
    if len(dims) != 3 or facts["dims"] != 3 or math.prod(dims) > facts["maxChips"]:
        return False
    return all(dim > 0 and dim % 4 == 0 for dim in dims) and (facts["anyOrder"] or dims == sorted(dims))


def _shapes(facts: Generation, chips: int) -> str:
    """Return every shape with this many chips, for a message; only the ascending ones."""
    usual = [shape for shape in facts["topologies"] if chip_count(shape) == chips]
    if facts["dims"] != 3 or chips % 64 or chips > facts["maxChips"]:
        return ", ".join(usual)
    cubes = chips // 64
    sides = [side for side in range(1, cubes + 1) if cubes % side == 0]
    cubic = [
        f"{4 * a}x{4 * b}x{4 * (cubes // a // b)}"
        for a in sides
        for b in sides
        if cubes % (a * b) == 0 and a <= b <= cubes // a // b
    ]
    return ", ".join(dict.fromkeys(usual + cubic))


def _checked_slices(slices: int) -> int:
    if not 1 <= slices <= MAX_SLICES:
        raise _refuse(SLICES_FIELD, slices, f"a whole number from 1 to {MAX_SLICES}")
    return slices


def _slice(generation: str, topology: str, slices: int) -> Slice:
    facts = table()[generation]
    chips = chip_count(topology)
    # The machine with exactly the slice's chips, else the one that large slices consist of: `1x1` on a
    # four-chip machine would request four chips of a one-chip slice.
    machine = next((m for m in facts["machines"] if m["chips"] == chips), facts["machines"][-1])
    vms = chips // machine["chips"]
    return Slice(
        name=name_of(generation, topology),
        generation=generation,
        slices=slices,
        topology=topology,
        chips=chips,
        tensorcores=chips * facts["coresPerChip"],
        vms=vms,
        chips_per_vm=machine["chips"],
        machine_type=machine["type"],
        host_vcpus=machine["vcpus"],
        host_memory_gb=machine["memoryGb"],
        gke_accelerator=facts["gkeAccelerator"],
        pathways_instance_type=f"{machine['pathways']}:{topology}" if machine["pathways"] else None,
        multi_host=vms > 1,
        requires_workload_policy=facts["workloadPolicy"] and vms > 1,
        parallel_containers=min(facts["containersPerVm"], machine["chips"]),
        jax_devices_per_chip=facts["jaxDevicesPerChip"],
        hbm_gib=facts["hbmGib"],
        hbm_gbytes_per_s=facts["hbmGbytesPerSecond"],
        peak_bf16_tflops=facts["peakBf16Tflops"],
        ici_gbytes_per_s=facts["iciGbytesPerSecond"],
        dcn_gbits_per_s=facts["dcnGbitsPerSecond"],
    )


def _cpu(type: str, size: str, topology: str | None, slices: int) -> Slice:
    devices = int(size) if re.fullmatch(r"[1-9][0-9]{0,3}", size) else 0
    if not 1 <= devices <= CPU_MAX_DEVICES:
        accepted = f"cpu-1 to cpu-{CPU_MAX_DEVICES}: that many virtual devices in one pod"
        raise _refuse(TYPE_FIELD, type, accepted, "more devices: more slices")
    if topology is not None:
        raise _refuse(TOPOLOGY_FIELD, topology, f"{type} has no topology; accepted: unset")
    return Slice(
        name=type,
        generation="cpu",
        slices=_checked_slices(slices),
        chips=devices,
        tensorcores=0,
        vms=1,
        chips_per_vm=devices,
    )
