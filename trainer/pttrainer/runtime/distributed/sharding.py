"""Where arrays live: meshes of devices, and shardings by the table of `logical_axes`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pttrainer.runtime.distributed import logical_axes
from pttrainer.runtime.distributed.logical_axes import (
    MESH_AXES,
    MESH_AXIS_OF,
    fitting,
    fitting_batch,
    mesh_axes,
)


def make_mesh(shape: tuple[int, ...], devices: Sequence[Any] | None = None) -> Mesh:
    """The mesh of these devices (unset: all); trailing axes may be left out and are 1. Axis types are Auto: the
    compiler propagates shardings from weights and constraints."""
    sizes = (*shape, *(1 for _ in MESH_AXES[len(shape) :]))
    chosen = list(jax.devices() if devices is None else devices)[: math.prod(sizes)]
    return Mesh(_arranged(sizes, chosen), MESH_AXES)


def _arranged(sizes: tuple[int, ...], devices: Sequence[Any]) -> Any:
    """Devices so that those of an axis are neighbours. Copies of the model (`data`) go to slices where there are as
    many of them, or a multiple. An axis may be a part of a torus's side (fsdp 16 x tensor 4 on 8x8 chips)."""
    slices = len({device.slice_index for device in devices}) if _is_multislice(devices) else 1
    if slices > 1 and sizes[0] % slices == 0:
        inner = (sizes[0] // slices, *sizes[1:])
        outer = (slices, *(1 for _ in inner[1:]))
        return mesh_utils.create_hybrid_device_mesh(inner, outer, devices, allow_split_physical_axes=True)
    if slices > 1:
        return np.array(devices).reshape(sizes)
    return mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)


def _is_multislice(devices: Sequence[Any]) -> bool:
    return all(device.platform == "tpu" and getattr(device, "slice_index", None) is not None for device in devices)


def spec_of(axes: tuple[str | None, ...]) -> PartitionSpec:
    """The partition of an array whose axes have these logical names."""
    return PartitionSpec(*(None if axis is None else MESH_AXIS_OF[axis] for axis in axes))


def weight_shardings(mesh: Mesh, abstract: Any, axes: Any) -> Any:
    """A sharding per weight. An axis that the mesh axes do not divide is split by the first of them that do, or
    kept whole, as odd sizes need."""
    is_axes = lambda x: isinstance(x, tuple)  # noqa: E731

    def one(axes: tuple[str | None, ...], array: Any) -> NamedSharding:
        split = (fitting(mesh.shape, name, size) for name, size in zip(axes, array.shape, strict=True))
        return NamedSharding(mesh, PartitionSpec(*(found[0] if len(found) == 1 else found or None for found in split)))

    return jax.tree.map(one, axes, abstract, is_leaf=is_axes)


def fitting_batch_spec(mesh: Mesh | jax.sharding.AbstractMesh, shape: tuple[int, ...]) -> PartitionSpec:
    """Rows over data, fsdp and expert, tokens over sequence; an axis that does not divide evenly is kept whole."""
    return spec_of(fitting_batch(mesh.shape, shape))


def batch_sharding(mesh: Mesh | jax.sharding.AbstractMesh, shape: tuple[int, ...]) -> NamedSharding:
    """Where an array of a batch lives (`fitting_batch_spec`)."""
    return NamedSharding(mesh, fitting_batch_spec(mesh, shape))


def replicated(mesh: Mesh) -> NamedSharding:
    """A copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def put(mesh: Mesh, tree: Any) -> Any:
    """Global host arrays onto the mesh, split as `batch_sharding` says."""

    def one(x: Any) -> jax.Array:
        x = np.asarray(x)
        return jax.make_array_from_callback(x.shape, batch_sharding(mesh, x.shape), lambda index: x[index])

    return jax.tree.map(one, tree)


def fetch(tree: Any) -> Any:
    """Whole host copies of arrays, on every process."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    from jax.experimental import multihost_utils

    return jax.tree.map(lambda x: np.asarray(multihost_utils.process_allgather(x, tiled=True)), tree)


def constrain(x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
    """Pins an activation's layout; without a mesh in context (tests, one device) it does nothing."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return x
    pinned: jax.Array = jax.lax.with_sharding_constraint(x, spec_of(axes))
    return pinned


def constrain_fitting(x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
    """As `constrain`; an axis that does not divide evenly is kept whole."""
    kept = (None if axis is None or size % parts(axis) else axis for axis, size in zip(axes, x.shape, strict=True))
    return constrain(x, tuple(kept))


def devices() -> int:
    """Devices of the mesh in context; 1 without one."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else int(mesh.size)


def chip() -> tuple[str, str]:
    """Platform and device kind that the mesh in context is made of, which need not be this process's."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is not None:
        return device.platform, device.device_kind
    return jax.default_backend(), jax.devices()[0].device_kind


def parts(logical: str) -> int:
    """Into how many parts the mesh in context splits an axis of this name."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else mesh_size(mesh, logical)


def splits(axis: str) -> bool:
    """True where the mesh in context splits this mesh axis."""
    mesh = jax.sharding.get_abstract_mesh()
    return not mesh.empty and mesh.shape[axis] > 1


def pieces(axis: str, size: int) -> int:
    """Into how many pieces the mesh in context cuts an axis of this size; 1 where they would not be equal."""
    count = int(jax.sharding.get_abstract_mesh().shape[axis]) if splits(axis) else 1
    return 1 if size % count else count


def sequence_rows(x_BTX: jax.Array, pieces: int) -> jax.Array:
    """[B, T, …] to [pieces · B, T / pieces, …]: what a device holds of a row becomes a row of its own; nothing moves.
    Whatever sorts or slices the tokens of a row would otherwise gather all of it."""
    if pieces == 1:
        return x_BTX
    B, T, *rest = x_BTX.shape
    cut = jax.numpy.swapaxes(x_BTX.reshape(B, pieces, T // pieces, *rest), 0, 1)
    return constrain(cut.reshape(pieces * B, T // pieces, *rest), ("sequence_batch", *(None,) * (1 + len(rest))))


def whole_rows(x_BTX: jax.Array, pieces: int) -> jax.Array:
    """The inverse of `sequence_rows`."""
    if pieces == 1:
        return x_BTX
    B, T, *rest = x_BTX.shape
    joined = jax.numpy.swapaxes(x_BTX.reshape(pieces, B // pieces, T, *rest), 0, 1)
    return constrain(joined.reshape(B // pieces, pieces * T, *rest), ("batch", "sequence", *(None,) * len(rest)))


def mesh_size(mesh: Mesh | jax.sharding.AbstractMesh, logical: str) -> int:
    """Into how many pieces the mesh cuts a logical axis."""
    return logical_axes.pieces(mesh.shape, mesh_axes(logical))
