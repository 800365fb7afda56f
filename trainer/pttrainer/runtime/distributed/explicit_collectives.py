"""Products and look-ups over split weights whose collectives are written out.

By default the compiler chooses them: in the backward pass it gathers a matrix of attention twice, and before a look-up
the whole embedding. Written out, a matrix is gathered once, and rows of the embedding travel in place of the table. A
gradient is a reduce-scatter; libtpu 0.0.42 makes it an all-reduce and a slice, as it does with every other way to write
the sum. On TPUs only: what CPUs and GPUs run is the compiler's choice.

Left out: meshes that split matrices (`tensor`), where the compiler's choice stays. But the devices of a sampler's
`tensor` may each compute prompts of their own (`Stored`).

Letters: B rows, T tokens, N = B·T, X a matrix's inputs, Y its outputs, H head size, V vocabulary, D model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array, lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import PartitionSpec

from pttrainer.runtime import tpu_tiles
from pttrainer.runtime.distributed import logical_axes, sharding
from pttrainer.runtime.distributed.logical_axes import BATCH_AXES, Axes
from pttrainer.runtime.layouts import row_major
from pttrainer.runtime.tpu_tiles import LANES

HEADS = ("heads", "kv_heads")
TOKENS = PartitionSpec(BATCH_AXES, "sequence")
STEPS = {("TPU7x", 64): 2}
"""(Device kind, devices) of slices that gather in two steps -> devices of a chip. On 2 x 4 x 4 chips of tpu7x, which
are no torus, libtpu 0.0.42 makes a gather in one step a sum of padded parts: twice the bytes, and products wait."""
Heads = tuple[int | None, int | None]


def are_possible() -> bool:
    """Return True if the mesh in context is one of TPUs that splits weights, rows and tokens, and no more."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1 or not logical_axes.gathers(mesh.shape, sharding.chip()[0]):
        return False
    return sharding.parts("embed") > 1


def are_used(rows: int, tokens: int) -> bool:
    """Return True if they are possible, and the mesh divides these rows and their tokens evenly."""
    return are_possible() and rows % sharding.parts("batch") == tokens % sharding.parts("sequence") == 0


@dataclass(frozen=True)
class SplitMatrix:
    """A matrix [X, Y] of a layer that is gathered for each product; reads like a Param in a module.

    axes: the logical names of X and Y. heads: the size of a head for each of them that is heads. rank: which of them is
    an adapter's rank. rows: the logical name of the rows that it multiplies.
    """

    w_XY: Array
    axes: Axes
    heads: Heads = (None, None)
    rank: int | None = None
    rows: str = "batch"

    ndim = 2

    def __getitem__(self, all_of_it: EllipsisType) -> SplitMatrix:
        return self

    def astype(self, dtype: Any) -> SplitMatrix:
        """Return the matrix in another number format, in which it is gathered."""
        return replace(self, w_XY=self.w_XY.astype(dtype))

    def __rmatmul__(self, x_BTX: Array) -> Array:
        return product(x_BTX, self.w_XY, self.axes, self.heads, self.rows, rank=self.rank)


class Stored(NamedTuple):
    """Where matrices are, and the rows that they multiply. axes: a matrix's logical axes -> those that split it."""

    rows: str = "batch"
    axes: Callable[[Axes], Axes] = lambda axes: axes


AS_TRAINED = Stored()


def put_into(part: nnx.Module, names: Iterable[str], head_dim: int | None = None, stored: Stored = AS_TRAINED) -> None:
    """Replace the matrices of a part of a layer that multiply as they are stored, and their adapters."""
    for name in names:
        matrix, adapter = getattr(part, name, None), getattr(part, f"{name}_lora", None)
        if not isinstance(matrix, nnx.Param):
            continue
        x, y = (head_dim if axis in HEADS else None for axis in matrix.get_metadata()["axes"][-2:])
        setattr(part, name, _of(matrix, (x, y), stored))
        if adapter is not None:
            adapter.a = _of(adapter.a, (x, None), stored, rank=1)
            adapter.b = _of(adapter.b, (None, y), stored, rank=0)


def _of(matrix: nnx.Param[Array], heads: Heads, stored: Stored, rank: int | None = None) -> SplitMatrix:
    return SplitMatrix(matrix[...], stored.axes(matrix.get_metadata()["axes"][-2:]), heads, rank, stored.rows)


def product(
    x_BTX: Array,
    w_XY: Array,
    axes: Axes,
    heads: Heads = (None, None),
    rows: str = "batch",
    *,
    rank: int | None = None,
) -> Array:
    """Return rows times a matrix, which is gathered; its gradient is summed where it stays.

    What is gathered of an adapter gets zeros along its rank, up to a TPU's lanes, which it takes anyway: with fewer
    columns the compiler turns the tiles of the whole stream, and every product of the layer reads them in the worse
    order. Zeros that are there before would be sent, and libtpu 0.0.42 fails on their gradient: it makes one slice of
    the one that leaves them out and the one behind a sum.

    Rows, tokens and heads are axes of their own in the product: cut behind it, queries, keys and values would be copied
    into another order of tiles in each pass. Rows with at least as many tokens as the model is wide have their tokens
    in the lanes of tiles; there a matrix of an MLP is gathered with the model's axis in its lanes: with the inner one,
    which the compiler may choose, half of the products are slower.
    """
    inputs, outputs = (
        (size,) if head_dim is None else (size // head_dim, head_dim)
        for head_dim, size in zip(heads, w_XY.shape, strict=True)
    )
    split = sharding.weight_split(axes, w_XY.shape)
    # An adapter may be split finer than into heads.
    whole_heads = all(one[0] % _parts(names) == 0 for one, names in zip((inputs, outputs), split, strict=True))
    stored = (*inputs, *outputs) if whole_heads else w_XY.shape
    starts = (0, len(inputs) if whole_heads else 1)
    places = [(names, at) for names, at in zip(split, starts, strict=True) if names]
    missing, multiplied = [(0, 0)] * len(stored), [inputs, outputs]
    if rank is not None:
        width = tpu_tiles.filled_up(w_XY.shape[rank])
        missing[starts[rank]], multiplied[rank] = (0, width - w_XY.shape[rank]), (width,)

    is_of_mlp, tokens = set(axes) == {"embed", "mlp"}, x_BTX.shape[-2] // sharding.parts("sequence")
    has_lanes_of_tokens = is_of_mlp and tokens >= w_XY.shape[axes.index("embed")]

    def local(x: Array, w: Array) -> Array:
        if has_lanes_of_tokens:
            w = _with_lanes(_as_stored(w), axes)
        for names, axis in places:
            w = _gathered(w, names, axis)
        if has_lanes_of_tokens:
            w = _with_lanes(w, axes)
        if rank is not None:
            w = jnp.pad(w, missing)
        return jnp.tensordot(x, w.reshape(*multiplied[0], *multiplied[1]), axes=len(inputs))

    x, w = x_BTX.reshape(*x_BTX.shape[:-1], *multiplied[0]), w_XY.reshape(stored)
    spec = PartitionSpec(*(next((names for names, at in places if at == axis), None) for axis in range(w.ndim)))
    of_rows = sharding.spec_of((rows, "sequence")) if x_BTX.ndim > 2 else sharding.spec_of((rows,))
    out: Array = jax.shard_map(local, in_specs=(of_rows, spec), out_specs=of_rows)(x, w)
    return out.reshape(*x_BTX.shape[:-1], -1)


def _gathered(part: Array, names: tuple[str, ...], axis: int) -> Array:
    """Gather a part over mesh axes; on the slices of `STEPS` over the devices of each chip, and then over chips."""
    devices = _parts(names)
    of_chip = STEPS.get((sharding.chip()[1], devices))
    if of_chip is None or len(names) > 1:
        whole: Array = lax.all_gather(part, names, axis=axis, tiled=True)
        return whole
    ids = np.arange(devices).reshape(-1, of_chip)
    for groups in (ids, ids.T):
        part = lax.all_gather(part, names[0], axis=axis, tiled=True, axis_index_groups=groups.tolist())
    return part


def _as_stored(w_XY: Array) -> Array:
    """Pin a part of a matrix, and of its gradient, to the layout in which TPUs store it, if it fills its lanes.

    Or the gradients of all layers would be in that of what is gathered, and be copied for the optimizer.
    """
    return row_major(w_XY) if w_XY.shape[1] % LANES == 0 else w_XY


def _with_lanes(w_XY: Array, axes: Axes) -> Array:
    """Pin a matrix of an MLP to the layout with the model's axis in the lanes."""
    pinned: Array = with_layout_constraint(w_XY, Layout((axes.index("mlp"), axes.index("embed"))))
    return pinned


def _parts(names: tuple[str, ...]) -> int:
    """Return into how many parts these mesh axes split."""
    shape = jax.sharding.get_abstract_mesh().shape
    return math.prod(shape[name] for name in names)


def look_up(table_VD: Array, tokens_BT: Array, dtype: str) -> Array:
    """Return the tokens' rows [B, T, D] of a table that is split along D.

    Each device reads its columns for the tokens of all, and sends every other device the ones of its tokens: 2·B·T·D
    bytes in place of the table's, and as much in the backward pass. The gradient is added up in float32.
    """
    names = sharding.weight_split(("vocab", "embed"), table_VD.shape)[1]
    if not names:  # D does not divide
        replicated: Array = table_VD.astype(dtype)[tokens_BT]
        return replicated

    def local(table_VD: Array, tokens_BT: Array) -> Array:
        table_VD = _table_as_stored(table_VD)
        all_BT = lax.all_gather(tokens_BT, names, axis=0, tiled=True)
        rows_BTD = table_VD.astype(jnp.float32)[all_BT].astype(dtype)
        own_BTD: Array = lax.all_to_all(rows_BTD, names, split_axis=0, concat_axis=2, tiled=True)
        return own_BTD

    looked_up: Array = jax.shard_map(local, in_specs=(PartitionSpec(None, names), TOKENS), out_specs=TOKENS)(
        table_VD, tokens_BT
    )
    return looked_up


def table_as_stored(table_VD: Array) -> Array:
    """Pin a table that is split along D, such as the head's gradient, to the layout in which TPUs store its parts.

    From rows, in which it is added up: what is whole would be turned before it is cut, or the optimizer's arrays after.
    """
    names = sharding.weight_split(("vocab", "embed"), table_VD.shape)[1]
    of = PartitionSpec(None, names)

    def local(part_VD: Array) -> Array:
        return _table_as_stored(row_major(part_VD))

    pinned: Array = jax.shard_map(local, in_specs=of, out_specs=of)(table_VD)
    return pinned


def _table_as_stored(part_VD: Array) -> Array:
    """Pin a table's part, and its gradient, to the layout with less to fill tiles: that in which TPUs store it."""
    is_turned = tpu_tiles.is_turned_in_tiles(part_VD.shape)
    pinned: Array = with_layout_constraint(part_VD, Layout((1, 0) if is_turned else (0, 1)))
    return pinned
