"""What the accelerator requires of a job: that it exists, that the mesh covers it, that the batch divides over it.

These checks need the accelerators table, so Python alone does them: `ptctl` before it sends a job, the operator before
it creates anything. The messages say how many chips and devices a name stands for.
"""

import math

from ptapi.accelerators import Slice, fewer_slices, resolve
from ptapi.accelerators.mesh import MESH_AXES, axis_sizes
from ptapi.accelerators.one_process import uses_pathways
from ptapi.accelerators.roles import roles_beside
from ptapi.accelerators.trainer_sampler_split import Split, split_of
from ptapi.errors import Finding, SpecError
from ptapi.spec import Parallelism, PostTrainJobSpec

PARALLELISM_FIELD = "spec.training.parallelism"


def check_devices(spec: PostTrainJobSpec) -> list[Finding]:
    """Return what is wrong with the accelerator, the mesh and the batch; the first mistake hides its consequences."""
    try:
        slice_ = resolve(spec.accelerator.type, spec.accelerator.topology, spec.accelerator.slices)
        split = split_of(spec) if spec.runtime.is_native else None
        sizes = mesh_sizes(spec.training.parallelism, slice_, split)
        roles_beside(spec)
    except SpecError as error:
        return error.findings
    if uses_pathways(spec) and slice_.pathways_instance_type is None:
        return [_no_pathways(slice_)]
    if not spec.runtime.is_native:  # another program divides its batch itself
        return []
    return _batches(spec, slice_, sizes["data"] * sizes["fsdp"] * sizes["expert"]) or _fewer_slices(spec, sizes["data"])


def mesh_sizes(parallelism: Parallelism, slice_: Slice, split: Split | None = None) -> dict[str, int]:
    """Return the sizes of the mesh's axes, with `auto` resolved.

    split: where other chips sample; the mesh is of those that train.
    Raises SpecError where the product of the sizes is not the number of devices.
    """
    training = slice_ if split is None else split.trainer
    sizes = axis_sizes(parallelism, training.total_devices, training.slices)
    if math.prod(sizes.values()) != training.total_devices:
        raise SpecError([_uneven_mesh(parallelism, slice_, training.total_devices)])
    return sizes


def _fewer_slices(spec: PostTrainJobSpec, data: int) -> list[Finding]:
    """Return what keeps the job from training on `accelerator.minSlices` slices."""
    least, slices = spec.accelerator.min_slices, spec.accelerator.slices
    if least is None or least >= slices:
        return []
    if data % slices:
        held = f"a multiple of accelerator.slices ({slices}) with minSlices, so that each slice holds the whole model"
        return [Finding(f"{PARALLELISM_FIELD}.data", str(data), held, f"data: {slices}")]
    usable = fewer_slices.usable_counts(spec)
    if least in usable:
        return []
    rows = f"the {spec.training.batch_size} rows of a batch divide over {', '.join(map(str, usable))}"
    nearest = min(usable, key=lambda count: abs(count - least))
    return [
        Finding(
            "spec.accelerator.minSlices", str(least), f"a number of slices that train: {rows}", f"minSlices: {nearest}"
        )
    ]


def _no_pathways(slice_: Slice) -> Finding:
    return Finding(
        "spec.pathways.enabled",
        "true",
        f"false or auto, because Pathways does not run on {slice_.describe()}",
        "accelerator: {type: v6e-16}",
    )


def _uneven_mesh(parallelism: Parallelism, slice_: Slice, devices: int) -> Finding:
    written = ", ".join(f"{axis}: {getattr(parallelism, axis)}" for axis in MESH_AXES)
    training = "" if devices == slice_.total_devices else " that train"
    return Finding(
        PARALLELISM_FIELD,
        f"{{{written}}}",
        f"axes whose product is {devices}, the JAX devices of {slice_.describe()}{training}",
        f"fsdp: {devices} and auto for the others",
    )


def _batches(spec: PostTrainJobSpec, slice_: Slice, ways: int) -> list[Finding]:
    group = spec.algorithm.samples_per_prompt
    sizes = {"batchSize": spec.training.batch_size, "microBatchSize": spec.training.micro_batch_size}
    return [_uneven_batch(name, size, slice_, ways, group) for name, size in sizes.items() if size and size % ways]


def _uneven_batch(name: str, size: int, slice_: Slice, ways: int, group: int) -> Finding:
    unit = math.lcm(ways, group)
    near = sorted({max(unit, size // unit * unit), size // unit * unit + unit})
    return Finding(
        f"spec.training.{name}",
        str(size),
        f"a multiple of {ways}, because {slice_.describe()} splits the batch {ways} ways (data x fsdp x expert)",
        f"{name}: {' or '.join(str(value) for value in near)}",
    )
