"""Where arrays live: logical axis names, mesh axes, and the one table between them.

The mesh has four axes. `data` copies the model, `fsdp` splits weights and optimizer state, both split the
batch; `tensor` splits the matrices of a layer; `sequence` splits the tokens of a row. Model code speaks of
logical axes only ("embed", "heads"), so the layout can change in one place.
"""

from __future__ import annotations

import math
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ptapi.spec import Parallelism
from pttrainer.errors import ConfigError

MESH_AXES = ("data", "fsdp", "tensor", "sequence")

MESH_AXIS_OF: dict[str, str | tuple[str, ...] | None] = {
    "batch": ("data", "fsdp"),
    "sequence": "sequence",
    "layer": None,
    "vocab": "tensor",
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "expert": None,
}


def mesh_shape(parallelism: Parallelism, devices: int, slices: int = 1) -> tuple[int, int, int, int]:
    """Sizes of the mesh axes for this many devices, `auto` resolved.

    data: one copy per slice (only gradients cross the slow network); fsdp: all that is left; tensor,
    sequence: 1. Raises ConfigError naming factorisations that work.
    """
    asked = {axis: getattr(parallelism, axis) for axis in MESH_AXES}
    sizes = {axis: size for axis, size in asked.items() if size != "auto"}
    sizes.setdefault("tensor", 1)
    sizes.setdefault("sequence", 1)
    left = devices // math.prod(sizes.values())
    if "data" not in sizes and "fsdp" not in sizes:
        sizes["data"] = slices if left % slices == 0 else 1
        sizes["fsdp"] = left // sizes["data"]
    sizes.setdefault("data", left)
    sizes.setdefault("fsdp", left)
    shape = (sizes["data"], sizes["fsdp"], sizes["tensor"], sizes["sequence"])
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


def make_mesh(shape: tuple[int, int, int, int]) -> Mesh:
    """The device mesh; axis types are Auto: the compiler propagates shardings from weights and constraints."""
    return jax.make_mesh(shape, MESH_AXES, axis_types=(jax.sharding.AxisType.Auto,) * len(MESH_AXES))


def spec_of(axes: tuple[str | None, ...]) -> PartitionSpec:
    """The partition of an array whose axes have these logical names."""
    return PartitionSpec(*(None if axis is None else MESH_AXIS_OF[axis] for axis in axes))


def weight_shardings(mesh: Mesh, abstract: Any, logical_axes: Any) -> Any:
    """A sharding per weight. An axis that the mesh axis does not divide is kept whole, as odd sizes need."""
    is_axes = lambda x: isinstance(x, tuple)  # noqa: E731

    def one(axes: tuple[str | None, ...], array: Any) -> NamedSharding:
        names = tuple(
            name if name is not None and size % _mesh_size(mesh, name) == 0 else None
            for name, size in zip(axes, array.shape, strict=True)
        )
        return NamedSharding(mesh, spec_of(names))

    return jax.tree.map(one, logical_axes, abstract, is_leaf=is_axes)


def fitting_batch_spec(mesh: Mesh, shape: tuple[int, ...]) -> PartitionSpec:
    """Rows over data and fsdp, tokens over sequence; an axis that does not divide evenly is kept whole."""
    names = ("batch", "sequence")[: len(shape)]
    fitting = (name if size % _mesh_size(mesh, name) == 0 else None for name, size in zip(names, shape, strict=False))
    return spec_of(tuple(fitting))


def constrain(x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
    """Pins an activation's layout; without a mesh in context (tests, one device) it does nothing."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return x
    pinned: jax.Array = jax.lax.with_sharding_constraint(x, spec_of(axes))
    return pinned


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
    return 1 if mesh.empty else _mesh_size(mesh, logical)


def splits(axis: str) -> bool:
    """True where the mesh in context splits this mesh axis."""
    mesh = jax.sharding.get_abstract_mesh()
    return not mesh.empty and mesh.shape[axis] > 1


def _mesh_size(mesh: Mesh | jax.sharding.AbstractMesh, logical: str) -> int:
    mesh_axes = MESH_AXIS_OF[logical]
    if mesh_axes is None:
        return 1
    return math.prod(mesh.shape[a] for a in ((mesh_axes,) if isinstance(mesh_axes, str) else mesh_axes))
