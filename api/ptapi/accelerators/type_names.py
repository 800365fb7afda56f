"""The name of an accelerator's type, with its topology, to a slice; and what was probably meant by a wrong one."""

import difflib
import math
import re

from ptapi.accelerators.slice import Slice, chips_in_words, host_devices, slice_of
from ptapi.accelerators.table import Generation, chip_count, families, family_of, gpu_families, name_of, sizes, table
from ptapi.errors import Finding, SpecError

CPU_MAX_DEVICES = 64
MAX_SLICES = 512
ONE_OF_GPUS = "1 with GPUs, where several machines are one type: h100-16 is two of eight"
TYPE_FIELD = "spec.accelerator.type"
TOPOLOGY_FIELD = "spec.accelerator.topology"
SLICES_FIELD = "spec.accelerator.slices"
FAMILIES = (
    "v4, v5p, v5litepod (v5e), v6e (trillium), tpu7x (ironwood), h100, h100-mega, h200, b200, rtx-pro-6000, l4, a100, "
    "a100-80gb, cpu"
)


def resolve(type: str, topology: str | None = None, slices: int = 1) -> Slice:
    """Resolve a type: `v5p-128`, an alias (`v5e-16`, `ironwood-128`), a shape (`v5p-4x4x4`), `h100-8`, or `cpu-8`.

    Raises SpecError, with the nearest names and their chips, for a type that does not exist or does not fit.
    """
    family, size = family_of(type)
    if family == "cpu":
        return _cpu(type, size, topology, slices)
    generation = families().get(family)
    if generation is None:
        raise _unknown_family(type)
    if re.fullmatch(r"[1-9][0-9]*(x[1-9][0-9]*)+", size) and family not in gpu_families():
        shape = _named_shape(type, generation, size, topology)
    elif re.fullmatch(r"[1-9][0-9]*", size):
        shape = _sized_shape(type, generation, int(size), topology)
    else:
        raise _unknown_size(type, generation, None)
    return slice_of(generation, shape, _checked_slices(slices, family))


def _with_chips(generation: str, topology: str, family: str) -> str:
    """Return the name with its chips, `v5e-16 (16 chips)`, in the family name that the user wrote."""
    number = name_of(generation, topology).rpartition("-")[2]
    return f"{family}-{number} ({chips_in_words(generation, chip_count(topology))})"


def _refuse(field: str, value: object, accepted: str, hint: str = "") -> SpecError:
    return SpecError([Finding(field, str(value), accepted, hint)])


def near_name(type: str) -> str | None:
    """Return the type that was probably meant: `V5P-128`, `v5p_128`, `v5p128` and `tpu-v5p-128` are v5p-128."""
    plain = type.lower().replace("_", "-").replace(" ", "-")
    for prefix in ("cloud-", "tpu-", "nvidia-", "gpu-"):
        plain = plain.removeprefix(prefix)
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
    if machine := _of_machine(type):
        return _refuse(TYPE_FIELD, type, "is not a known accelerator", f"{type} is a machine; did you mean {machine}?")
    if sold := [family for family in families() if table()[families()[family]]["gkeAccelerator"] == type]:
        hint = (
            f"{type} is GKE's label of the nodes; did you mean {_example(sold[0]).partition(' ')[0]}, or another size?"
        )
        return _refuse(TYPE_FIELD, type, "is not a known accelerator", hint)
    parts = [type.partition("-")[0], *type.split("-")]
    similar = [name for part in parts for name in difflib.get_close_matches(part, known, n=3, cutoff=0.5)]
    examples = [_example(family) for family in dict.fromkeys(similar)]
    nearest = f"nearest: {', '.join(examples[:3])}" if examples else f"known families: {FAMILIES}"
    return _refuse(
        TYPE_FIELD, type, f"is not a known accelerator; {nearest}", f"a type is a family and a number, of {FAMILIES}"
    )


def _of_machine(type: str) -> str | None:
    """Return the GPUs of a machine type, `h100-8` of `a3-highgpu-8g`; those of TPUs are parts of several slices."""
    machines = ((facts, one) for facts in table().values() if facts["kind"] == "gpu" for one in facts["machines"])
    return next((f"{facts['names'][0]}-{one['chips']}" for facts, one in machines if one["type"] == type), None)


def _example(family: str) -> str:
    if family == "cpu":
        return "cpu-8 (8 virtual devices)"
    topology = table()[families()[family]]["topologies"][0]
    return _with_chips(families()[family], topology, family)


def _unknown_size(type: str, generation: str, size: int | None) -> SpecError:
    facts = table()[generation]
    family = family_of(type)[0]
    at = len([count for count in sizes(generation) if size is not None and count < size])
    nearest = facts["topologies"][max(0, at - 1) : at + 1] if size is not None else facts["topologies"][:3]
    listed = ", ".join(_with_chips(generation, topology, family) for topology in nearest)
    unit = "chips" if facts["coresPerChip"] == 1 else "TensorCores, two per chip"
    if facts["kind"] == "gpu":
        machines = [f"{one['chips']} ({one['type']})" for one in facts["machines"]]
        more = ", or 2, 4, 8, … of the last" if int(facts["topologies"][-1]) > facts["machines"][-1]["chips"] else ""
        unit = f"GPUs: those of a machine, {', '.join(machines)}{more}"
    return _refuse(TYPE_FIELD, type, f"does not exist; nearest: {listed}", f"the number in {family}-N counts {unit}")


def _sized_shape(type: str, generation: str, size: int, topology: str | None) -> str:
    facts = table()[generation]
    usual = dict(zip(sizes(generation), facts["topologies"], strict=True))
    if size not in usual:
        raise _unknown_size(type, generation, size)
    chips = size // facts["coresPerChip"]
    if topology is None:
        return usual[size]
    if facts["kind"] == "gpu":
        raise _refuse(TOPOLOGY_FIELD, topology, f"{type} has no topology; accepted: unset")
    if chip_count(topology) != chips or not _is_valid(facts, topology):
        count = chips_in_words(generation, chips)
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


def _checked_slices(slices: int, family: str = "") -> int:
    if slices != 1 and family in gpu_families():
        raise _refuse(SLICES_FIELD, slices, ONE_OF_GPUS)
    if not 1 <= slices <= MAX_SLICES:
        raise _refuse(SLICES_FIELD, slices, f"a whole number from 1 to {MAX_SLICES}")
    return slices


def _cpu(type: str, size: str, topology: str | None, slices: int) -> Slice:
    devices = int(size) if re.fullmatch(r"[1-9][0-9]{0,3}", size) else 0
    if not 1 <= devices <= CPU_MAX_DEVICES:
        accepted = f"cpu-1 to cpu-{CPU_MAX_DEVICES}: that many virtual devices in one pod"
        raise _refuse(TYPE_FIELD, type, accepted, "more devices: more slices")
    if topology is not None:
        raise _refuse(TOPOLOGY_FIELD, topology, f"{type} has no topology; accepted: unset")
    return host_devices(type, devices, _checked_slices(slices))
