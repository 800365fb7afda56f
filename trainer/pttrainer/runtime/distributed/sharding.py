"""Where arrays live: meshes of devices, and shardings from the table in `logical_axes`."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pttrainer.runtime import tpu_tiles
from pttrainer.runtime.distributed import logical_axes
from pttrainer.runtime.distributed.logical_axes import MESH_AXES, MESH_AXIS_OF, fitting_batch, mesh_axes


def make_mesh(shape: tuple[int, ...], devices: Sequence[Any] | None = None) -> Mesh:
    """Return the mesh of these devices (None: all of them); trailing axes may be omitted and are 1.

    Axis types are Auto: the compiler propagates shardings from weights and constraints.
    """
    sizes = (*shape, *(1 for _ in MESH_AXES[len(shape) :]))
    chosen = list(jax.devices() if devices is None else devices)[: math.prod(sizes)]
    return Mesh(_arranged(sizes, chosen), MESH_AXES)


def _arranged(sizes: tuple[int, ...], devices: Sequence[Any]) -> Any:
    """Arrange devices so that those along an axis are neighbours.

    Replicas of the model (`data`) go to separate slices if their number is a multiple of the slices'. An axis may
    be part of a torus's side (fsdp 16 x tensor 4 on 8x8 chips).
    """
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
    """Return the PartitionSpec of an array whose axes have these logical names."""
    return PartitionSpec(*(None if axis is None else MESH_AXIS_OF[axis] for axis in axes))


def weight_shardings(mesh: Mesh, abstract: Any, axes: Any) -> Any:
    """Return a sharding for each weight.

    An axis that its mesh axes do not divide is split by the leading ones that do, or replicated.
    """
    is_axes = lambda x: isinstance(x, tuple)  # noqa: E731
    platform, _ = chip(mesh)

    def one(axes: tuple[str | None, ...], array: Any) -> NamedSharding:
        split = logical_axes.weight_split(mesh.shape, axes, array.shape, platform)
        return NamedSharding(mesh, PartitionSpec(*(names[0] if len(names) == 1 else names or None for names in split)))

    return jax.tree.map(one, axes, abstract, is_leaf=is_axes)


def fitting_batch_spec(mesh: Mesh | jax.sharding.AbstractMesh, shape: tuple[int, ...]) -> PartitionSpec:
    """Split rows over data, fsdp and expert, tokens over sequence; an axis that does not divide is replicated."""
    return spec_of(fitting_batch(mesh.shape, shape))


def batch_sharding(mesh: Mesh | jax.sharding.AbstractMesh, shape: tuple[int, ...]) -> NamedSharding:
    """Return the sharding of a batch's array (`fitting_batch_spec`)."""
    return NamedSharding(mesh, fitting_batch_spec(mesh, shape))


def batch_shapes(mesh: Mesh, batch: Any) -> Any:
    """Return shapes, dtypes and shardings of a batch's arrays, as `put` places them."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=batch_sharding(mesh, x.shape)), batch)


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding that puts a copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def put(mesh: Mesh, tree: Any) -> Any:
    """Put global host arrays on the mesh, split by `batch_sharding`."""

    def one(x: Any) -> jax.Array:
        x = np.asarray(x)
        return jax.make_array_from_callback(x.shape, batch_sharding(mesh, x.shape), lambda index: x[index])

    return jax.tree.map(one, tree)


def fetch(tree: Any) -> Any:
    """Return full host copies of arrays, on every process."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    from jax.experimental import multihost_utils

    return jax.tree.map(lambda x: np.asarray(multihost_utils.process_allgather(x, tiled=True)), tree)


def constrain(x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
    """Pin an activation's layout; do nothing without a mesh in context (tests, one device)."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return x
    pinned: jax.Array = jax.lax.with_sharding_constraint(x, spec_of(axes))
    return pinned


def constrain_fitting(x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
    """Pin an activation's layout like `constrain`, but replicate an axis that does not divide evenly."""
    fitting_axes = (
        None if axis is None or size % parts(axis) else axis for axis, size in zip(axes, x.shape, strict=True)
    )
    return constrain(x, tuple(fitting_axes))


def in_equal_parts(x_VX: jax.Array, logical: str) -> jax.Array:
    """Return a weight whose rows are split over a logical axis, filled up with zeros if the mesh does not divide them.

    Each device then copies its part, whole tiles, of the weight that all hold.
    """
    count = parts(logical)
    if len(x_VX) % count == 0:
        return x_VX
    filled = tpu_tiles.filled_up(len(x_VX), count * tpu_tiles.LANES)
    return constrain(jnp.pad(x_VX, ((0, filled - len(x_VX)), (0, 0))), (logical, None))


def constrain_rows(x: jax.Array) -> jax.Array:
    """Pin the first axis of an activation to the devices that split a batch, where it divides evenly; no other axis.

    Unpinned, the compiler may split a product's sum as its matrix is split: each device then holds its part of the sum
    for all devices' rows, and these are added over the network.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1 or len(x) % parts("batch"):
        return x
    others = [PartitionSpec.UNCONSTRAINED] * (x.ndim - 1)
    pinned: jax.Array = jax.lax.with_sharding_constraint(x, PartitionSpec(logical_axes.BATCH_AXES, *others))
    return pinned


def devices() -> int:
    """Return the number of devices of the mesh in context, or 1 without one."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else int(mesh.size)


def chip(mesh: Mesh | jax.sharding.AbstractMesh | None = None) -> tuple[str, str]:
    """Return platform and device kind of a mesh, that in context without one; or this process's if it does not know."""
    of = jax.sharding.get_abstract_mesh() if mesh is None else mesh
    device = of.devices.flat[0] if isinstance(of, Mesh) else of.abstract_device or jax.devices()[0]
    return device.platform, device.device_kind


def weight_split(axes: tuple[str | None, ...], shape: tuple[int, ...]) -> list[tuple[str, ...]]:
    """Return the axes of the mesh in context that split each axis of a weight; none without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return [()] * len(shape)
    split = logical_axes.weight_split(mesh.shape, axes, shape, chip()[0])
    return [tuple(name for name in names if mesh.shape[name] > 1) for names in split]


def is_stored_turned(axes: tuple[str | None, ...], shape: tuple[int, ...]) -> bool:
    """Return True if a TPU keeps a device's part of a weight with its last two axes exchanged."""
    mesh = jax.sharding.get_abstract_mesh()
    split = weight_split(axes, shape)
    part = tuple(size // logical_axes.pieces(mesh.shape, names) for size, names in zip(shape, split, strict=True))
    return tpu_tiles.is_turned_in_tiles(part)


def parts(logical: str) -> int:
    """Return the number of parts into which the mesh in context splits a logical axis."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else mesh_size(mesh, logical)


def is_split(axis: str) -> bool:
    """Return True if the mesh in context splits this mesh axis."""
    mesh = jax.sharding.get_abstract_mesh()
    return not mesh.empty and mesh.shape[axis] > 1


def pieces(axis: str, size: int) -> int:
    """Return the number of pieces into which the mesh in context splits an axis; 1 if they would be unequal."""
    count = int(jax.sharding.get_abstract_mesh().shape[axis]) if is_split(axis) else 1
    return 1 if size % count else count


def sequence_rows(x_BTX: jax.Array, pieces: int) -> jax.Array:
    """Reshape [B, T, …] to [pieces · B, T / pieces, …], so that each device's part of a row becomes a row.

    Nothing moves between devices. Sorting or slicing a row's tokens would otherwise gather all of them.
    """
    if pieces == 1:
        return x_BTX
    B, T, *rest = x_BTX.shape
    cut = jax.numpy.swapaxes(x_BTX.reshape(B, pieces, T // pieces, *rest), 0, 1)
    return constrain(cut.reshape(pieces * B, T // pieces, *rest), ("sequence_batch", *(None,) * (1 + len(rest))))


def whole_rows(x_BTX: jax.Array, pieces: int) -> jax.Array:
    """Invert `sequence_rows`."""
    if pieces == 1:
        return x_BTX
    B, T, *rest = x_BTX.shape
    joined = jax.numpy.swapaxes(x_BTX.reshape(pieces, B // pieces, T, *rest), 0, 1)
    return constrain(joined.reshape(B // pieces, pieces * T, *rest), ("batch", "sequence", *(None,) * len(rest)))


def mesh_size(mesh: Mesh | jax.sharding.AbstractMesh, logical: str) -> int:
    """Return the number of pieces into which a mesh splits a logical axis."""
    return logical_axes.pieces(mesh.shape, mesh_axes(logical))
