"""How arrays are sharded, as arithmetic: logical axis names, mesh axes, and the one table that maps them.

The mesh has five axes. `data` replicates the model, `fsdp` splits weights and optimizer state, `expert` splits the
experts (and, like `fsdp`, all other weights); all three split the batch. `tensor` splits the matrices of a layer;
`sequence` splits the tokens of a row (and, like `fsdp`, all weights). Model code names logical axes only ("embed",
"heads"), so the layout changes in one place.

Nothing here imports jax: `sharding` builds meshes and shardings from it, and preflight's formula counts bytes with it.
"""

import math
from collections.abc import Mapping

from ptapi.accelerators.mesh import MESH_AXES as MESH_AXES
from ptapi.accelerators.mesh import axis_sizes
from ptapi.spec import Parallelism
from pttrainer.errors import ConfigError
from pttrainer.runtime.tpu_tiles import LANES, fills_rows, is_turned_in_tiles, lies_across

BATCH_AXES = ("data", "fsdp", "expert")
"""Mesh axes that split the rows of a batch."""
PIECES = 2
"""Of a row, on each device of `sequence` that shares it (`balanced_rows`)."""
TOKENS_EACH = PIECES * LANES
"""Tokens of a row on each device that shares it: a multiple of these, whole tiles of each piece, or attention has no
kernel."""
Shape = tuple[int, int, int, int, int]
"""Sizes of MESH_AXES."""
Axes = tuple[str | None, ...]
"""Logical names of an array's axes."""
Split = list[tuple[str, ...]]
"""The mesh axes that split each axis of an array."""
GATHERING = ("tpu",)
"""Platforms on which products gather their matrices themselves (`explicit_collectives`)."""

MESH_AXIS_OF: dict[str, str | tuple[str, ...] | None] = {
    "batch": BATCH_AXES,
    "sequence": "sequence",
    "layer": None,
    "vocab": "tensor",
    "embed": ("fsdp", "expert", "sequence"),
    "heads": "tensor",
    "kv_heads": "tensor",
    "latent": None,
    "mlp": "tensor",
    "expert": "expert",
    "expert_embed": ("fsdp", "sequence"),
    "sampled_expert": ("expert", "tensor"),
    "low_rank": ("tensor", "fsdp", "expert", "sequence"),
    "expert_low_rank": ("tensor", "fsdp", "sequence"),
    "sequence_batch": ("sequence", *BATCH_AXES),
    "spread_batch": (*BATCH_AXES, "tensor"),
}
"""`expert_embed` is the `embed` axis of an expert's matrices: an array cannot be split twice by the same mesh axis.
`sampled_expert` are a sampler's, whose devices of `tensor` may hold whole ones (`weight_split`).
`latent` is the short side of a matrix to a latent vector, which every device needs whole. `low_rank` is the side of
an adapter's matrix that is not a model axis, so any mesh axis may split it. `sequence_batch`: rows cut into their
pieces over `sequence`, with each piece as a row of its own. `spread_batch`: rows that the devices of `tensor` divide,
too, each of which gathers the matrices."""


def mesh_shape(parallelism: Parallelism, devices: int, slices: int = 1) -> Shape:
    """Return the sizes of the mesh axes for this many devices, with `auto` resolved.

    Raises ConfigError naming factorisations that work.
    """
    data, fsdp, tensor, sequence, expert = axis_sizes(parallelism, devices, slices).values()
    shape = (data, fsdp, tensor, sequence, expert)
    if math.prod(shape) != devices:
        written = ", ".join(f"{axis}: {getattr(parallelism, axis)}" for axis in MESH_AXES)
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
    """Check that `parallelism.expert` divides the model's experts; raise ConfigError with sizes that do."""
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


def check_batch(batch_size: int, micro_batch_size: int | None, shards: int) -> None:
    """Check that rows divide evenly over micro-batches and devices; raise ConfigError with numbers that do."""
    micro = micro_batch_size or batch_size
    if batch_size % micro:
        raise ConfigError(
            f"spec.training.microBatchSize: {micro}: must divide batchSize ({batch_size}); accepted for example: "
            f"{max(d for d in range(1, micro + 1) if batch_size % d == 0)}"
        )
    if micro % shards:
        field_name = "batchSize" if micro_batch_size is None else "microBatchSize"
        raise ConfigError(
            f"spec.training.{field_name}: {micro}: must be a multiple of data × fsdp × expert, which is {shards} here; "
            f"accepted for example: {math.ceil(micro / shards) * shards}"
        )


def mesh_axes(logical: str | None) -> tuple[str, ...]:
    """Return the mesh axes that split a logical axis."""
    axes = None if logical is None else MESH_AXIS_OF[logical]
    return () if axes is None else (axes,) if isinstance(axes, str) else axes


def pieces(sizes: Mapping[str, int], axes: tuple[str, ...]) -> int:
    """Return the number of pieces into which a mesh of these sizes splits an array along these axes."""
    return math.prod(sizes[axis] for axis in axes)


def gathers(sizes: Mapping[str, int], platform: str) -> bool:
    """Return True if products gather their matrices themselves: on TPUs, if only weights, rows and tokens are split."""
    return platform in GATHERING and sizes["tensor"] == 1


def weight_split(sizes: Mapping[str, int], axes: Axes, shape: tuple[int, ...], platform: str) -> Split:
    """Return the mesh axes that split each axis of a weight.

    On TPUs the matrices of an MLP are split along their inner axis in place of the model's, if its parts fill rows of
    tiles: 14 of Gemma 2 9B's 3,584 columns on 256 chips do not, 56 of 14,336 do. Whole rows are then what is gathered.
    Experts are split into whole ones, if parts of their matrices would fill no rows of tiles (28 of DeepSeek V3's 7,168
    on 256 chips), be fewer or be stored as nothing reads them (`lies_across`), and if each device gets as many. Only
    where nothing else splits a layer: elsewhere the compiler gathers, by its own choice.
    """
    split = [fitting(sizes, name, size) for name, size in zip(axes, shape, strict=True)]
    if "sampled_expert" in axes:
        return _sampled_split(sizes, axes, shape, split)
    if not gathers(sizes, platform):
        return split
    if {"expert_embed", "mlp"} <= set(axes):
        experts, model = axes.index("expert"), axes.index("expert_embed")
        whole = (*mesh_axes("expert"), *mesh_axes("expert_embed"))
        is_filled = fills_rows(shape[model], pieces(sizes, mesh_axes("expert_embed")))
        # Whole experts of 2,816 x 704 are kept turned, and copied for adapters, all layers' at once.
        X, Y = shape[-2:]
        are_turned = is_turned_in_tiles((X, Y)) or is_turned_in_tiles((Y, X))
        is_read = is_filled and (are_turned or not _lies_across(sizes, shape, split))
        if not is_read and shape[experts] % pieces(sizes, whole) == 0:
            split[experts], split[model] = whole, ()
    elif set(axes[-2:]) == {"embed", "mlp"}:
        outer, inner = axes.index("embed"), axes.index("mlp")
        moved = fitting(sizes, "embed", shape[inner])
        parts = pieces(sizes, moved)
        if fills_rows(shape[inner], parts) and parts >= pieces(sizes, split[outer]):
            split[outer], split[inner] = (), moved
    return split


def _sampled_split(sizes: Mapping[str, int], axes: Axes, shape: tuple[int, ...], split: Split) -> Split:
    """Return the mesh axes that split each axis of a sampler's experts, whose weights nothing gathers.

    Devices of `tensor` hold whole experts, if parts of their inner axis would fill no lanes (64 of DeepSeek V3's 2,048
    on 32 devices) or be stored as no product reads them (`lies_across`), and each device gets as many; or those parts.
    """
    experts, inner = axes.index("sampled_expert"), axes.index("mlp")
    in_parts = list(split)
    in_parts[experts] = fitting(sizes, "expert", shape[experts])
    is_thin = shape[inner] < LANES * sizes["tensor"]
    if "tensor" not in split[experts] or not (is_thin or _lies_across(sizes, shape, in_parts)):
        return in_parts
    split[inner] = ()
    return split


def _lies_across(sizes: Mapping[str, int], shape: tuple[int, ...], split: Split) -> bool:
    return lies_across(tuple(size // pieces(sizes, axes) for size, axes in zip(shape, split, strict=True)))


def fitting(sizes: Mapping[str, int], logical: str | None, size: int) -> tuple[str, ...]:
    """Return the mesh axes that split an axis of this size.

    They are the axes of its logical name, with trailing ones dropped until the product divides the size.
    """
    axes = mesh_axes(logical)
    while axes and size % pieces(sizes, axes):
        axes = axes[:-1]
    return axes


def fitting_batch(sizes: Mapping[str, int], shape: tuple[int, ...]) -> tuple[str | None, ...]:
    """Return logical names for the batch axes that are split; an axis that does not divide evenly is replicated."""
    named = zip(("batch", "sequence"), shape, strict=False)
    return tuple(name if size % pieces(sizes, mesh_axes(name)) == 0 else None for name, size in named)
