"""A run on fewer slices than it asked for (`accelerator.minSlices`): with how many the same batch divides.

The batch of a step stays whole, so each of the remaining slices computes more micro-batches of it; rows per device and
micro-batch never grow, because memory was sized for them. Evaluation and sampling shrink alike. One rule, so that the
check before chips are obtained, the supervisors that choose the slices and the trainer agree.
"""

from fractions import Fraction
from typing import Any

from ptapi.accelerators.mesh import axis_sizes
from ptapi.accelerators.one_process import uses_pathways
from ptapi.accelerators.type_names import resolve
from ptapi.spec import PostTrainJobSpec


def is_supervised(spec: PostTrainJobSpec) -> bool:
    """Return True if supervisors restart the trainer in place.

    `minSlices` equal to `slices` asks for that alone, and for nothing where no trainer could go on with fewer.
    """
    least, slices = spec.accelerator.min_slices, spec.accelerator.slices
    return least is not None and (least < slices or can_lose_slices(spec))


def can_lose_slices(spec: PostTrainJobSpec) -> bool:
    """Return True if such a job can go on with fewer slices; the rules of `minSlices` say which cannot, and why."""
    rollout, environment = spec.rollout, spec.environment
    is_in_one_process = rollout.placement == "disaggregated" or (
        environment is not None and environment.needs_one_process
    )
    return (
        spec.runtime.is_native
        and not spec.accelerator.dynamic_slicing
        and not uses_pathways(spec)
        and rollout.sampling_engine == "native"
        and not is_in_one_process
        and not rollout.in_flight_updates
    )


def usable_counts(spec: PostTrainJobSpec) -> tuple[int, ...]:
    """Return the numbers of slices, ascending, on which the job can train; always has all of them.

    Raises SpecError for an unknown accelerator.
    """
    slices = spec.accelerator.slices
    return tuple(count for count in range(1, slices + 1) if count == slices or micro_batch(spec, count) is not None)


def micro_batch(spec: PostTrainJobSpec, count: int) -> int | None:
    """Return the rows of a micro-batch on this many slices; None if the batch does not divide over them.

    Pairs of preferences stay whole. A device has whole groups of a prompt's samples if it has them on all slices, and
    only then: a checkpoint may hold a batch whose samples share their prompts.
    """
    training, slices = spec.training, spec.accelerator.slices
    sizes = _sizes(spec)
    if sizes["data"] % slices:
        return None
    whole = training.micro_batch_size or training.batch_size
    all_shards = sizes["data"] * sizes["fsdp"] * sizes["expert"]
    shards = all_shards // slices * count
    least = 2 if spec.algorithm.dpo is not None or spec.algorithm.reward is not None else 1
    samples = spec.algorithm.samples_per_prompt
    has_groups = whole % (samples * all_shards) == 0
    fitting = (
        rows
        for rows in range(whole * count // slices, 0, -1)
        if rows % shards == 0
        and training.batch_size % rows == 0
        and rows % least == 0
        and (rows % (samples * shards) == 0) == has_groups
    )
    return next(fitting, None)


def share(spec: PostTrainJobSpec, count: int) -> Fraction:
    """Return which part of the job's slices this many are."""
    return Fraction(count, spec.accelerator.slices)


def on_slices(spec: PostTrainJobSpec, count: int) -> PostTrainJobSpec:
    """Return the spec as the trainer runs it on this many slices.

    The batch is the same; the mesh, micro-batches and what is evaluated, scored and sampled at once are smaller.
    """
    part = share(spec, count)
    if part == 1:
        return spec
    rows, sizes = micro_batch(spec, count), _sizes(spec)
    if rows is None:
        raise ValueError(f"{count} slices do not divide the batch")
    data = sizes["data"] // spec.accelerator.slices * count
    parallelism = spec.training.parallelism.model_copy(update={**sizes, "data": data})
    changes: dict[str, Any] = {
        "training": spec.training.model_copy(update={"micro_batch_size": rows, "parallelism": parallelism}),
        "accelerator": spec.accelerator.model_copy(update={"slices": count}),
        "evaluation": _smaller(spec.evaluation, "batch_size", part),
        "rollout": _smaller(spec.rollout, "slots", part),
        "rewards": [
            reward.model_copy(update={"model": _smaller(reward.model, "batch_size", part)}) for reward in spec.rewards
        ],
    }
    return spec.model_copy(update=changes)


def _smaller(settings: Any, field: str, part: Fraction) -> Any:
    """Return the settings with this part of a number, at least 1, if they set it."""
    number = getattr(settings, field, None)
    return settings if number is None else settings.model_copy(update={field: max(1, int(number * part))})


def _sizes(spec: PostTrainJobSpec) -> dict[str, int]:
    accelerator = spec.accelerator
    devices = resolve(accelerator.type, accelerator.topology, accelerator.slices).total_devices
    return axis_sizes(spec.training.parallelism, devices, accelerator.slices)
