"""The devices that train and those that sample, and the sizes of their meshes (`rollout.placement`).

Colocated, all devices do both, on one mesh. Disaggregated, the first devices train on the mesh that `parallelism`
describes, and the last ones sample on a mesh made for decoding: copies of the model, each on as few devices as hold its
weights, or on more where that samples a rollout sooner (`native.sizes.sampler_shape`). Left out: how weights get from
one to the other (`weight_sync`), and the meshes themselves (`device_meshes`).
"""

from typing import NamedTuple

from ptapi.accelerators import Slice
from ptapi.accelerators.samplers import sampler_chips
from ptapi.accelerators.trainer_sampler_split import Split, split_of
from ptapi.errors import SpecError
from ptapi.spec import PostTrainJobSpec
from pttrainer.errors import ConfigError
from pttrainer.models.shapes.structure import ModelStructure
from pttrainer.rollout.native.sizes.sampler_shape import fastest
from pttrainer.rollout.native.sizes.sampling_time import Rollout, rollout_of
from pttrainer.runtime.distributed import logical_axes

WEIGHTS_SHARE = 0.5
"""Share of a sampling device's memory that weights may take; the rest is for keys, values and what is computed."""


class Shapes(NamedTuple):
    """Sizes of the mesh axes. sampler: None where the devices that train sample, too."""

    trainer: logical_axes.Shape
    sampler: logical_axes.Shape | None


def shapes(spec: PostTrainJobSpec, model: ModelStructure, devices: int) -> Shapes:
    """Return the mesh sizes for this many devices. Raises ConfigError."""
    split = _split(spec)
    parallelism, slices = spec.training.parallelism, spec.accelerator.slices
    if split is None:
        return Shapes(logical_axes.mesh_shape(parallelism, devices, slices), None)
    expected = split.trainer.total_devices + split.sampler.total_devices
    if devices != expected:
        raise ConfigError(
            f"spec.accelerator.type: {spec.accelerator.type}: has {expected} devices, but this run has {devices}; "
            "accepted with rollout.placement: disaggregated: the type and number of the devices in use"
        )
    trainer = logical_axes.mesh_shape(parallelism, split.trainer.total_devices, split.trainer.slices)
    return Shapes(trainer, for_decoding(model, split.sampler, copies(spec), rollout_of(spec)))


def copies(spec: PostTrainJobSpec) -> int:
    """Return how many weight versions the sampling devices hold at once; 1 for adapters, which are small."""
    if spec.training.lora is not None:
        return 1
    updates = spec.algorithm.updates_per_batch
    return max(1, spec.rollout.steps_ahead(updates) // updates)


def sampler_slices(spec: PostTrainJobSpec) -> Slice | None:
    """Return the chips of samplers with pods of their own, a slice for each; None if there are none."""
    try:
        return sampler_chips(spec)
    except SpecError as error:
        raise ConfigError(str(error)) from error


def _split(spec: PostTrainJobSpec) -> Split | None:
    try:
        return split_of(spec)
    except SpecError as error:
        raise ConfigError(str(error)) from error


def separate_sampler(model: ModelStructure, spec: PostTrainJobSpec, one: Slice, samplers: int) -> logical_axes.Shape:
    """Return the sizes of the mesh of one of so many samplers with pods of their own, on these chips."""
    return for_decoding(model, one, copies(spec), rollout_of(spec, samplers))


def for_decoding(model: ModelStructure, slice_: Slice, versions: int, rollout: Rollout | None) -> logical_axes.Shape:
    """Return the sizes of a mesh with copies of the model; no copy spans slices.

    Each on as few devices as hold so many versions of it, or on more where that samples the rollout sooner.
    """
    weights, each, sizes = model.decoding_bytes, slice_.devices, [1]
    if slice_.chip is not None:
        memory = WEIGHTS_SHARE * slice_.chip.hbm_gib * 2**30 / slice_.jax_devices_per_chip
        sizes = [n for n in range(1, each + 1) if each % n == 0 and versions * weights / n <= memory] or [each]
    return fastest(model, [(slice_.total_devices // n, 1, n, 1, 1) for n in sizes], slice_, rollout)
