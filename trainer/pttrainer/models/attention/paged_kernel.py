"""Decoding attention by JAX's ragged paged attention kernel for TPUs: when to use it, and how to call it.

Letters: B rows, T tokens, N query heads, K key/value heads, H head size, and those of `paged_kv_cache`.

`is_supported` is a function of the computation and the device (`flash_kernels.Problem`), like `choose_kernel` for
packed rows; the chip is that of the mesh in context, so a step compiled here for a TPU takes the TPU's kernel. The
kernel reads a row's tokens up to its own end, in blocks, and no others: a token costs the length of its row, not what
is allocated, and finished rows cost next to nothing. Everything else takes the dense cache and the plain computation.

Left out: prompts, which are computed over the dense cache and moved into pages afterwards; skipping the blocks before a
window (they are read and masked); reading shared pages once for all samples (the kernel reads them once per row, the
plain computation once per prompt).
"""

import jax
import jax.numpy as jnp
from jax import Array

from pttrainer.models.attention import paged_kv_cache
from pttrainer.models.attention.dot_product import Scoring
from pttrainer.models.attention.flash_kernels import Problem
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.tpu_tiles import LANES, filled_up

BLOCK_TOKENS = 256
"""Keys per block of the computation. A row reads whole blocks."""
BLOCK_QUERIES = 8
"""Rows of a block of queries. All of them are multiplied for each row of it, so few."""
TABLE_ENTRIES = 2**16
"""Page numbers per call: 256 KB of a core's scalar memory. Longer tables are split into several calls."""

_TOO_OLD = ("TPU v2", "TPU v3")


def is_supported(problem: Problem) -> bool:
    """Return True if the kernel computes exactly this, and compiles.

    Windows, soft caps and grouped queries never matter.
    """
    p = problem
    if p.platform != "tpu" or p.device_kind in _TOO_OLD or p.dtype not in ("bfloat16", "float32") or p.sinks:
        return False
    is_even = not (p.rows % p.row_shards or p.heads % p.head_shards or p.kv_heads % p.head_shards)
    return is_even and p.head_dim <= LANES and _fills_tiles(p)


def _fills_tiles(p: Problem) -> bool:
    """Return True if a token's heads fill tiles.

    Keys and values must fill tiles of 8 registers, or an eighth, a quarter or a half of one. The kernel takes a
    tile of them at once, and then the query heads that read it must fill one too.
    """
    registers, odd = divmod(2 * p.kv_heads // p.head_shards, 2 if p.dtype == "bfloat16" else 1)
    if odd or not (registers in (1, 2, 4) or registers % 8 == 0):
        return False
    return registers <= 8 or p.dtype == "bfloat16" or p.heads > p.kv_heads


def attend(
    new: tuple[Array, Array, Array],
    pages_EXZCH: Array,
    table_BJ: Array,
    positions_BT: Array,
    window: int | None,
    scoring: Scoring,
) -> tuple[Array, Array]:
    """Store the keys and values of new tokens, then attend; return [B, T, N, H] and the pages.

    new: queries, keys and values [B, T, heads, H].
    """

    def local(
        q_BTNH: Array, k_BTKH: Array, v_BTKH: Array, pages_EXZCH: Array, table_BJ: Array, positions_BT: Array
    ) -> tuple[Array, Array]:
        [pages_XZCH] = pages_EXZCH
        pages_XZCH = paged_kv_cache.write(pages_XZCH, k_BTKH, v_BTKH, table_BJ, positions_BT)
        return _kernel(q_BTNH, pages_XZCH, table_BJ, positions_BT, window, scoring), pages_XZCH[None]

    inputs = (*new, pages_EXZCH, table_BJ, positions_BT)
    if sharding.devices() == 1:
        return local(*inputs)
    queries, keys = (sharding.spec_of(("batch", None, heads, None)) for heads in ("heads", "kv_heads"))
    page_spec, rows = sharding.spec_of(paged_kv_cache.AXES), sharding.spec_of(("batch", None))
    split = jax.shard_map(
        local, in_specs=(queries, keys, keys, page_spec, rows, rows), out_specs=(queries, page_spec), check_vma=False
    )
    out: tuple[Array, Array] = split(*inputs)
    return out


def _kernel(
    q_BTNH: Array, pages_XZCH: Array, table_BJ: Array, positions_BT: Array, window: int | None, scoring: Scoring
) -> Array:
    """Call the kernel with every token as a sequence of its own, which ends with it.

    Padding may therefore be anywhere. A token without a position sees one token, and its result is meaningless.
    """
    from jax.experimental.pallas.ops.tpu import ragged_paged_attention as ragged

    B, T, N, H = q_BTNH.shape
    q_SNH = paged_kv_cache.pad_heads(q_BTNH.reshape(B * T, N, H), pages_XZCH.shape[-1])
    lengths_S = jnp.maximum(positions_BT + 1, 1).reshape(B * T).astype(jnp.int32)
    table_SJ = jnp.repeat(table_BJ, T, axis=0).astype(jnp.int32)

    def of_rows(some: slice) -> Array:
        count = len(range(B * T)[some])
        out: Array = ragged.ragged_paged_attention(
            q_SNH[some],
            pages_XZCH,
            lengths_S[some],
            table_SJ[some],
            jnp.arange(count + 1, dtype=jnp.int32),
            jnp.array([count], jnp.int32),
            sm_scale=scoring.scale,
            sliding_window=window,
            soft_cap=scoring.softcap,
            num_kv_pages_per_block=min(table_SJ.shape[1], BLOCK_TOKENS // paged_kv_cache.PAGE),
            num_queries_per_block=min(count, BLOCK_QUERIES),
        )
        return out

    at_once = rows_of_a_call(table_SJ.shape[1])
    out = [of_rows(slice(first, first + at_once)) for first in range(0, B * T, at_once)]
    out_SNH = out[0] if len(out) == 1 else jnp.concatenate(out)
    return out_SNH[..., :H].reshape(B, T, N, H)


def rows_of_a_call(pages_of_a_row: int) -> int:
    """Return the rows whose table fits the scalar memory, where a line takes whole multiples of `LANES`."""
    return max(1, TABLE_ENTRIES // filled_up(pages_of_a_row))
