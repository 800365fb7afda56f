"""The mesh that samples: as much of `tensor` as memory needs, and more of it where that samples a rollout sooner.

With more of `tensor` a device reads fewer weights for more rows, and adds up hidden states with more devices. Which
is faster depends on the model, the chips and the job's lengths, and on nothing that differs between two runs of a job:
preflight and the trainer come to the same mesh. Left out: devices of unknown rates (CPUs), draft models, images; there
the mesh stays what memory needs.
"""

import math
from collections.abc import Sequence

from ptapi import accelerators
from ptapi.accelerators import Slice
from ptapi.spec import PostTrainJobSpec
from pttrainer.models import ModelStructure
from pttrainer.rollout.native import buckets
from pttrainer.rollout.native.sizes.sampling_time import Rollout, rollout_seconds
from pttrainer.runtime.distributed import logical_axes
from pttrainer.runtime.distributed.logical_axes import Shape

WEIGHTS_SHARE = 0.35
"""Most share of a device's memory for unsplit sampler weights: the training state and a cache need memory, too."""
GAIN = 0.9
"""A mesh with twice the `tensor` has to take less than this share of the time: the estimate is no better."""
_TENSOR = logical_axes.MESH_AXES.index("tensor")


def sampler_shape(
    model: ModelStructure, shape: Shape, memory: int | None, chips: Slice | None, rollout: Rollout | None
) -> Shape:
    """Return the mesh that samples, on the devices of the training mesh. `tensor` takes from `fsdp`.

    Devices that share a row's tokens in training have rows of their own here: a row is sampled token by token. memory:
    bytes of a device; None (a CPU) takes nothing. chips, rollout: None takes what memory needs alone.
    """
    data, fsdp, tensor, sequence, expert = shape
    shape = (data, fsdp * sequence, tensor, 1, expert)
    if memory is None:
        return shape
    shapes = [shape_by_memory(model, model.decoding_bytes, shape, memory)]
    while (more := _doubled(shapes[-1])) is not None:
        shapes.append(more)
    return fastest(model, shapes, chips, rollout)


def shape_by_memory(model: ModelStructure, weights: int, shape: Shape, memory: int) -> Shape:
    """Return the mesh with the least `tensor` whose devices hold the weights (bytes of all of them).

    They take no more than their share of a device's memory. Key heads stay whole.
    """
    while weights > WEIGHTS_SHARE * memory * shape[_TENSOR]:
        more = _doubled(shape)
        if more is None or model.config.kv_heads % more[_TENSOR]:
            break
        shape = more
    return shape


def fastest(model: ModelStructure, shapes: Sequence[Shape], chips: Slice | None, rollout: Rollout | None) -> Shape:
    """Return the mesh that samples a rollout soonest: the first of these, or a later one, with more `tensor`.

    On a later one each device holds no more keys and values than on the first, on TPUs in pages if it did there.
    """
    best, sees_images = shapes[0], model.config.vision is not None  # the tower's time is in no estimate
    if chips is None or rollout is None or sees_images or rollout_seconds(model, best, chips, rollout) is None:
        return best
    for more in shapes[1:]:
        if _keeps_cache(model, shapes[0][_TENSOR], more, chips):
            before, after = (rollout_seconds(model, shape, chips, rollout) for shape in (best, more))
            assert before is not None
            assert after is not None
            best = more if after < before * GAIN ** math.log2(more[_TENSOR] / best[_TENSOR]) else best
    return best


def _keeps_cache(model: ModelStructure, least: int, shape: Shape, chips: Slice) -> bool:
    """Return True if this mesh splits heads evenly, over close devices, with no more bytes of a row than before.

    least: `tensor` before.
    """
    tensor, heads = shape[_TENSOR], model.config.kv_heads
    of_row, of_row_before = (n * buckets.token_bytes(model, tensor=n) for n in (tensor, least))
    if heads % tensor or of_row > of_row_before or buckets.state_bytes(model):
        return False
    had_pages = chips.platform == "tpu" and heads % least == 0 and fills_tiles(heads // least)
    return _close_devices(chips) % math.prod(shape[_TENSOR:]) == 0 and fills_tiles(heads // tensor) >= had_pages


def _doubled(shape: Shape) -> Shape | None:
    """Return the mesh with twice the `tensor`, taken from `fsdp`; None if that is odd."""
    data, fsdp, tensor, _, expert = shape
    return None if fsdp % 2 else (data, fsdp // 2, 2 * tensor, 1, expert)


def _close_devices(chips: Slice) -> int:
    """Return the devices that links join without a network between: of a TPU's slice, of a machine with GPUs."""
    return (chips.chips_per_vm if chips.is_gpu else chips.chips) * chips.jax_devices_per_chip


def chips_of(spec: PostTrainJobSpec, platform: str, devices: int) -> Slice | None:
    """Return the job's chips if these devices are whole slices of them; None for others, as in a run by hand."""
    chips = accelerators.resolve(spec.accelerator.type, spec.accelerator.topology, spec.accelerator.slices)
    return chips if chips.platform == platform and devices % chips.devices == 0 else None


def fills_tiles(kv_heads: int) -> bool:
    """Return True if a device with so many key heads can read bfloat16 pages (`paged_kernel.is_supported`)."""
    return kv_heads in (1, 2, 4) or kv_heads % 8 == 0
