"""A run on fewer slices than it asked for (`accelerator.minSlices`): with how many the same batch divides.

The batch of a step stays whole, so each of the remaining slices computes more micro-batches of it; rows per device and
micro-batch never grow, because memory was sized for them. One rule, so that the check before chips are obtained, the
supervisors that choose the slices and the trainer agree.
"""

from ptapi.accelerators.mesh import axis_sizes
from ptapi.accelerators.type_names import resolve
from ptapi.spec import Accelerator, PostTrainJobSpec, Training


def usable_counts(spec: PostTrainJobSpec) -> tuple[int, ...]:
    """Return the numbers of slices, ascending, on which the job can train; always has all of them.

    Raises SpecError for an unknown accelerator.
    """
    slices = spec.accelerator.slices
    return tuple(count for count in range(1, slices + 1) if count == slices or micro_batch(spec, count) is not None)


def micro_batch(spec: PostTrainJobSpec, count: int) -> int | None:
    """Return the rows of a micro-batch on this many slices; None if the batch does not divide over them."""
    training, slices = spec.training, spec.accelerator.slices
    sizes = _sizes(spec)
    if sizes["data"] % slices:
        return None
    shards = sizes["data"] // slices * count * sizes["fsdp"] * sizes["expert"]
    most = (training.micro_batch_size or training.batch_size) * count // slices
    fitting = (rows for rows in range(most, 0, -1) if rows % shards == 0 and training.batch_size % rows == 0)
    return next(fitting, None)


def on_slices(spec: PostTrainJobSpec, count: int) -> PostTrainJobSpec:
    """Return the spec as the trainer runs it on this many slices: same batch, smaller mesh, more micro-batches."""
    if count == spec.accelerator.slices:
        return spec
    rows, sizes = micro_batch(spec, count), _sizes(spec)
    if rows is None:
        raise ValueError(f"{count} slices do not divide the batch")
    data = sizes["data"] // spec.accelerator.slices * count
    parallelism = spec.training.parallelism.model_copy(update={**sizes, "data": data})
    training: Training = spec.training.model_copy(update={"micro_batch_size": rows, "parallelism": parallelism})
    accelerator: Accelerator = spec.accelerator.model_copy(update={"slices": count})
    return spec.model_copy(update={"training": training, "accelerator": accelerator})


def _sizes(spec: PostTrainJobSpec) -> dict[str, int]:
    accelerator = spec.accelerator
    devices = resolve(accelerator.type, accelerator.topology, accelerator.slices).total_devices
    return axis_sizes(spec.training.parallelism, devices, accelerator.slices)
