"""The meshes of a job's devices: one trains, and one samples if other devices do (`placement`)."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from pttrainer.rollout.disaggregated.placement import Shapes
from pttrainer.runtime.distributed import sharding


class Meshes(NamedTuple):
    """The meshes of `Shapes`."""

    trainer: Mesh
    sampler: Mesh | None


def meshes(sizes: Shapes, devices: Sequence[Any] | None = None) -> Meshes:
    """Build meshes of these sizes on these devices (default: all)."""
    devices = list(jax.devices() if devices is None else devices)
    if sizes.sampler is None:
        return Meshes(sharding.make_mesh(sizes.trainer, devices), None)
    ordered, training = sorted(devices, key=_place(devices)), math.prod(sizes.trainer)
    return Meshes(
        sharding.make_mesh(sizes.trainer, ordered[:training]), sharding.make_mesh(sizes.sampler, ordered[training:])
    )


def _place(devices: Sequence[Any]) -> Any:
    """Return the key that orders devices so that the first of them are whole slices, or a box of a slice's chips.

    `ptapi.accelerators.trainer_sampler_split` counts them in the same order.
    """
    if any(getattr(device, "coords", None) is None for device in devices):
        return lambda device: (_slice(device), device.id)
    extents = [len({device.coords[axis] for device in devices}) for axis in range(len(devices[0].coords))]
    longest = max(range(len(extents)), key=lambda axis: (extents[axis], axis))
    return lambda device: (_slice(device), device.coords[longest], device.id)


def _slice(device: Any) -> int:
    return getattr(device, "slice_index", None) or 0
