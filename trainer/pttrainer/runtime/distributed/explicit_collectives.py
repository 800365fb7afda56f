"""Products and look-ups over split weights whose collectives are written out.

By default the compiler chooses them: in the backward pass it gathers a matrix of attention twice, and before a look-up
the whole embedding. Written out, a matrix is gathered once, and rows of the embedding travel in place of the table. A
gradient is a reduce-scatter; libtpu 0.0.42 makes it an all-reduce and a slice, as it does with every other way to write
the sum. On TPUs only: what CPUs and GPUs run is the compiler's choice.

Left out: meshes that split tokens or matrices (`sequence`, `tensor`), where the compiler's choice stays.

Letters: B rows, T tokens, N = B·T, X a matrix's inputs, Y its outputs, H head size, V vocabulary, D model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jax.sharding import PartitionSpec

from pttrainer.runtime.distributed import logical_axes, sharding
from pttrainer.runtime.distributed.logical_axes import BATCH_AXES

PLATFORMS = ("tpu",)
HEADS = ("heads", "kv_heads")
ROWS = PartitionSpec(BATCH_AXES)


def are_used(rows: int) -> bool:
    """Return True if the mesh in context is one of TPUs that splits weights, and these rows, and nothing else."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1 or sharding.chip()[0] not in PLATFORMS:
        return False
    is_split = sharding.parts("embed") > 1 and rows % sharding.parts("batch") == 0
    return is_split and not sharding.is_split("tensor") and not sharding.is_split("sequence")


@dataclass(frozen=True)
class SplitMatrix:
    """A matrix [X, Y] of a layer that is gathered for each product; reads like a Param in a module.

    axes: the logical names of X and Y. head_dim: the size of a head where one of them is heads.
    """

    w_XY: Array
    axes: tuple[str | None, ...]
    head_dim: int | None = None

    ndim = 2

    def __getitem__(self, all_of_it: EllipsisType) -> SplitMatrix:
        return self

    def astype(self, dtype: Any) -> SplitMatrix:
        """Return the matrix in another number format, in which it is gathered."""
        return SplitMatrix(self.w_XY.astype(dtype), self.axes, self.head_dim)

    def __rmatmul__(self, x_BTX: Array) -> Array:
        return product(x_BTX, self.w_XY, self.axes, self.head_dim)


def put_into(part: nnx.Module, names: Iterable[str], head_dim: int | None = None) -> None:
    """Replace the matrices of a part of a layer that multiply as they are stored."""
    for name in names:
        matrix = getattr(part, name, None)
        if isinstance(matrix, nnx.Param):
            setattr(part, name, SplitMatrix(matrix[...], matrix.get_metadata()["axes"][-2:], head_dim))


def product(x_BTX: Array, w_XY: Array, axes: tuple[str | None, ...], head_dim: int | None = None) -> Array:
    """Return rows times a matrix, which is gathered; its gradient is summed where it stays.

    Rows, tokens and heads are axes of their own in the product: cut behind it, queries, keys and values would be copied
    into another order of tiles in each pass.
    """
    inputs, outputs = (
        (size,) if head_dim is None or name not in HEADS else (size // head_dim, head_dim)
        for name, size in zip(axes, w_XY.shape, strict=True)
    )
    split = _split(w_XY, axes)
    places = [(names, at) for names, at in zip(split, (0, len(inputs)), strict=True) if names]

    def local(x: Array, w: Array) -> Array:
        for names, axis in places:
            w = lax.all_gather(w, names, axis=axis, tiled=True)
        return jnp.tensordot(x, w, axes=len(inputs))

    x, w = x_BTX.reshape(*x_BTX.shape[:-1], *inputs), w_XY.reshape(*inputs, *outputs)
    spec = PartitionSpec(*(next((names for names, at in places if at == axis), None) for axis in range(w.ndim)))
    multiplied: Array = jax.shard_map(local, in_specs=(ROWS, spec), out_specs=ROWS)(x, w)
    return multiplied.reshape(*x_BTX.shape[:-1], -1)


def look_up(table_VD: Array, tokens_BT: Array, dtype: str) -> Array:
    """Return the tokens' rows [B, T, D] of a table that is split along D.

    Each device reads its columns for the tokens of all, and sends every other device the ones of its tokens: 2·B·T·D
    bytes in place of the table's, and as much in the backward pass. The gradient is added up in float32.
    """
    names = _split(table_VD, ("vocab", "embed"))[1]
    if not names:  # D does not divide
        replicated: Array = table_VD.astype(dtype)[tokens_BT]
        return replicated

    def local(table_VD: Array, tokens_BT: Array) -> Array:
        all_BT = lax.all_gather(tokens_BT, names, axis=0, tiled=True)
        rows_BTD = table_VD.astype(jnp.float32)[all_BT].astype(dtype)
        own_BTD: Array = lax.all_to_all(rows_BTD, names, split_axis=0, concat_axis=2, tiled=True)
        return own_BTD

    looked_up: Array = jax.shard_map(local, in_specs=(PartitionSpec(None, names), ROWS), out_specs=ROWS)(
        table_VD, tokens_BT
    )
    return looked_up


def _split(x: Array, axes: tuple[str | None, ...]) -> list[tuple[str, ...]]:
    """Return the mesh axes that split each axis of a weight, by the table that stores it."""
    mesh = jax.sharding.get_abstract_mesh()
    fitting = [logical_axes.fitting(mesh.shape, name, size) for name, size in zip(axes, x.shape, strict=True)]
    return [tuple(name for name in names if mesh.shape[name] > 1) for names in fitting]
