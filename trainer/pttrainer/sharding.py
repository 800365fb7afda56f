"""Where arrays live: logical axis names, mesh axes, and the one table between them.

The mesh has five axes. `data` copies the model, `fsdp` splits weights and optimizer state, `expert` splits the
experts (and, like `fsdp`, all other weights); all three split the batch. `tensor` splits the matrices of a layer;
`sequence` splits the tokens of a row. Model code speaks of logical axes only ("embed", "heads"), so the layout can
change in one place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ptapi.spec import Parallelism
from pttrainer.errors import ConfigError

MESH_AXES = ("data", "fsdp", "tensor", "sequence", "expert")
BATCH_AXES = ("data", "fsdp", "expert")
"""Mesh axes that split the rows of a batch."""
Shape = tuple[int, int, int, int, int]
"""Sizes of MESH_AXES."""

MESH_AXIS_OF: dict[str, str | tuple[str, ...] | None] = {
    "batch": BATCH_AXES,
    "sequence": "sequence",
    "layer": None,
    "vocab": "tensor",
    "embed": ("fsdp", "expert"),
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "expert": "expert",
    "expert_embed": "fsdp",
    "low_rank": ("tensor", "fsdp", "expert"),
    "expert_low_rank": ("tensor", "fsdp"),
    "sequence_batch": ("sequence", *BATCH_AXES),
}
"""`embed` of an expert's matrices has its own name: an array cannot be split twice by the same mesh axis.
`low_rank`: the side of an adapter's matrix that is not the model's axis; there is nothing else there to split.
`sequence_batch`: rows cut into their pieces over `sequence`, all pieces as rows of their own."""


def mesh_shape(parallelism: Parallelism, devices: int, slices: int = 1) -> Shape:
    """Sizes of the mesh axes for this many devices, `auto` resolved.

    data: one copy per slice (only gradients cross the slow network); fsdp: all that is left; the others: 1.
    Raises ConfigError naming factorisations that work.
    """
    asked = {axis: getattr(parallelism, axis) for axis in MESH_AXES}
    sizes = {axis: size for axis, size in asked.items() if size != "auto"}
    for axis in ("tensor", "sequence", "expert"):
        sizes.setdefault(axis, 1)
    left = devices // math.prod(sizes.values())
    if "data" not in sizes and "fsdp" not in sizes:
        sizes["data"] = slices if left % slices == 0 else 1
        sizes["fsdp"] = left // sizes["data"]
    sizes.setdefault("data", left)
    sizes.setdefault("fsdp", left)
    shape = (sizes["data"], sizes["fsdp"], sizes["tensor"], sizes["sequence"], sizes["expert"])
    if math.prod(shape) != devices:
        written = ", ".join(f"{axis}: {asked[axis]}" for axis in MESH_AXES)
        raise ConfigError(
            f"spec.training.parallelism: {{{written}}}: the product must be the number of devices, {devices}; "
            f"accepted for example: {_examples(devices)}"
        )
    return shape


def _examples(devices: int) -> str:
    tensor = next((n for n in (2, 3, 5, 7) if devices % n == 0), 1)
    pairs = dict.fromkeys(
        [f"{{fsdp: {devices}}}", f"{{data: {devices}}}", f"{{fsdp: {devices // tensor}, tensor: {tensor}}}"]
    )
    return ", ".join(pairs)


def check_experts(axis: int, experts: int | None) -> None:
    """`parallelism.expert` must divide the model's experts; raises ConfigError with sizes that do."""
    if axis == 1:
        return
    if experts is None:
        raise ConfigError(
            f"spec.training.parallelism.expert: {axis}: the model has no experts; accepted: auto, 1; "
            "hint: fsdp splits the weights of every model"
        )
    if experts % axis:
        sizes = ", ".join(str(n) for n in range(1, experts + 1) if experts % n == 0)
        raise ConfigError(
            f"spec.training.parallelism.expert: {axis}: must divide the model's {experts} experts; accepted: {sizes}"
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


def weight_shardings(mesh: Mesh, abstract: Any, logical_axes: Any) -> Any:
    """A sharding per weight. An axis that the mesh axes do not divide is split by the first of them that do, or
    kept whole, as odd sizes need."""
    is_axes = lambda x: isinstance(x, tuple)  # noqa: E731

    def one(axes: tuple[str | None, ...], array: Any) -> NamedSharding:
        fitting = (_fitting(mesh, name, size) for name, size in zip(axes, array.shape, strict=True))
        return NamedSharding(mesh, PartitionSpec(*fitting))

    return jax.tree.map(one, logical_axes, abstract, is_leaf=is_axes)


def fitting_batch_spec(mesh: Mesh | jax.sharding.AbstractMesh, shape: tuple[int, ...]) -> PartitionSpec:
    """Rows over data, fsdp and expert, tokens over sequence; an axis that does not divide evenly is kept whole."""
    names = ("batch", "sequence")[: len(shape)]
    sizes = zip(names, shape, strict=False)
    return spec_of(tuple(name if size % mesh_size(mesh, name) == 0 else None for name, size in sizes))


def constrain(x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
    """Pins an activation's layout; without a mesh in context (tests, one device) it does nothing."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return x
    pinned: jax.Array = jax.lax.with_sharding_constraint(x, spec_of(axes))
    return pinned


def constrain_fitting(x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
    """As `constrain`; an axis that does not divide evenly is kept whole."""
    fitting = (None if axis is None or size % parts(axis) else axis for axis, size in zip(axes, x.shape, strict=True))
    return constrain(x, tuple(fitting))


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
    return math.prod(mesh.shape[axis] for axis in _axes_of(logical))


def _fitting(mesh: Mesh, logical: str | None, size: int) -> str | tuple[str, ...] | None:
    """The mesh axes of a logical axis, without the last ones where all of them do not divide its size."""
    axes = _axes_of(logical)
    while axes and size % math.prod(mesh.shape[axis] for axis in axes):
        axes = axes[:-1]
    return axes[0] if len(axes) == 1 else axes or None


def _axes_of(logical: str | None) -> tuple[str, ...]:
    axes = None if logical is None else MESH_AXIS_OF[logical]
    return () if axes is None else (axes,) if isinstance(axes, str) else axes
