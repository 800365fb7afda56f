"""A TPU kernel for the products of a sampler's experts: few rows, sorted by group, with the matrix of each row's group.

Letters: R rows sorted by group, X and Y the axes of a matrix, E groups.

A token of decoding brings each expert a handful of rows, so the product is as fast as its matrices come from memory.
XLA's kernel for `jax.lax.ragged_dot` multiplies tiles of 128 or 256 rows for each expert, and copies matrices that
memory has turned; megablox' `gmm` asks for tables of tiles whose small operations take longer than some products. Here
all rows are in the core's memory, matrices pass through it one after the other, and each is multiplied with the tiles
of rows that its group touches. Groups without rows are not read.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from pttrainer.runtime.tpu_tiles import LANES, filled_up

ROWS = 32
"""Rows of a tile. A matrix unit is loaded for about as long as 128 rows take, so few tiles more cost nothing."""
ROWS_BYTES = 16 * 2**20
"""Most bytes of all rows, which stay in the core's memory: 128 tokens of DeepSeek V3 have 14 MiB."""
BLOCK_BYTES = 4 * 2**20
"""Most bytes of a part of a matrix, and of as wide a part of the product, which are there together, each twice: the
next is on its way, or the last."""
MEMORY_BYTES = ROWS_BYTES + 5 * BLOCK_BYTES
TOO_SMALL = ("TPU v2", "TPU v3", "TPU v4")
"""Chips whose cores have less memory."""


def fits(x_RX: Array, device_kind: str) -> bool:
    """Return True if the rows are few enough, and of numbers that the kernel multiplies."""
    is_known = x_RX.dtype in (jnp.bfloat16, jnp.float32) and device_kind not in TOO_SMALL
    R, X = filled_up(x_RX.shape[0], ROWS), filled_up(x_RX.shape[1])
    bytes_each = x_RX.dtype.itemsize
    return is_known and R * X * bytes_each <= ROWS_BYTES and max(R, X) * LANES * bytes_each <= BLOCK_BYTES


def product(
    x_RX: Array, matrices: Array, sizes_E: Array, *, is_turned: bool, cores: int = 1, interpret: bool = False
) -> Array:
    """Return [R, Y], of the type of `x_RX`: the first `sizes_E[0]` rows times the first matrix, and so on.

    Rows behind all groups are undefined. matrices: [E, X, Y], or [E, Y, X] if they are turned. cores: of a device; they
    share the parts of Y. interpret: run the kernel as ordinary operations, for tests without a TPU.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    R, X = x_RX.shape
    E, Y = matrices.shape[0], matrices.shape[1 if is_turned else 2]
    x_RX = jnp.pad(x_RX, ((0, -R % ROWS), (0, 0)))
    part = _part(max(filled_up(X), len(x_RX)) * matrices.dtype.itemsize, Y, cores)
    bounds = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(sizes_E).astype(jnp.int32)])
    block = (None, part, X) if is_turned else (None, X, part)

    def of_matrix(y: Any, e: Any, _: Any, fetched_E: Any) -> tuple[Any, ...]:
        return (fetched_E[e], y, 0) if is_turned else (fetched_E[e], 0, y)

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=2,
        in_specs=[
            pl.BlockSpec(x_RX.shape, lambda *_: (0, 0), pipeline_mode=pl.Buffered(1)),
            pl.BlockSpec(block, of_matrix),
        ],
        out_specs=pl.BlockSpec((x_RX.shape[0], part), lambda y, *_: (0, y)),
        grid=(pl.cdiv(Y, part), E),
    )
    product_RY: Array = pl.pallas_call(
        partial(_kernel, is_turned=is_turned),
        out_shape=jax.ShapeDtypeStruct((x_RX.shape[0], Y), x_RX.dtype),
        grid_spec=grid,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=MEMORY_BYTES
        ),
        name="few_rows_product",
        interpret=interpret,
    )(bounds, fetched(sizes_E), x_RX, matrices)
    return product_RY[:R]


def fetched(sizes_E: Array) -> Array:
    """Return the matrix that is in the core's memory for each group: of an empty one, the last that was needed."""
    is_read_E = sizes_E > 0
    of_group_E = jnp.where(is_read_E, jnp.arange(len(sizes_E), dtype=jnp.int32), -1)
    return jnp.maximum(lax.cummax(of_group_E), jnp.argmax(is_read_E).astype(jnp.int32))


def _kernel(bounds: Any, _: Any, x_RX: Any, matrix: Any, out_RY: Any, *, is_turned: bool) -> None:
    """Write the rows of one group. bounds: [E + 1], in scalar memory."""
    from jax.experimental import pallas as pl

    e = pl.program_id(1)
    first, behind = bounds[e], bounds[e + 1]
    axis = 1 if is_turned else 0

    def tile(i: Any, _: None) -> None:
        rows = pl.ds(pl.multiple_of(i * ROWS, ROWS), ROWS)
        of_tile = lax.dot_general(
            x_RX[rows, :], matrix[...], (((1,), (axis,)), ((), ())), preferred_element_type=jnp.float32
        )
        row = i * ROWS + lax.broadcasted_iota(jnp.int32, of_tile.shape, 0)
        is_own = (row >= first) & (row < behind)
        out_RY[rows, :] = jnp.where(is_own, of_tile, out_RY[rows, :].astype(jnp.float32)).astype(out_RY.dtype)

    @pl.when(behind > first)
    def multiply() -> None:
        lax.fori_loop(first // ROWS, pl.cdiv(behind, ROWS), tile, None)


def _part(column_bytes: int, Y: int, cores: int) -> int:
    """Return how many of Y's entries a kernel's step takes: all of them, or whole lanes of as many as fit."""
    most = BLOCK_BYTES // column_bytes // LANES * LANES
    parts = max(-(-Y // most), min(cores, -(-Y // LANES)))
    return Y if parts == 1 else filled_up(-(-Y // parts), LANES)
