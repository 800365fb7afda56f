"""What a token of a row sees, as splash attention reads it, and its kernels for that.

A query sees the keys of its own and of earlier slots, or with a window the nearest of those. Where devices share the
tokens of a row, each has the queries of its own slots and the keys of all; a kernel is made for all of them at once,
and each takes its part of the kernel's tables.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax.experimental.pallas.ops.tpu import splash_attention as splash

from pttrainer.models.attention import splash_blocks
from pttrainer.runtime.distributed import balanced_rows
from pttrainer.runtime.distributed.logical_axes import PIECES


class RowKernel(NamedTuple):
    """What a kernel is made for. length: of a row, in whole tiles; devices: that share a row's tokens.

    is_balanced: they hold its pieces in the order of `balanced_rows`. tiles: of its blocks.
    """

    heads: int
    length: int
    window: int | None
    tiles: splash_blocks.Tiles
    softcap: float | None
    residuals: str
    devices: int = 1
    is_balanced: bool = False
    interpret: bool = False


class RowMask(splash.Mask):
    """Which keys, of all slots of a row, the queries see whose slots are given in the order in which they are held."""

    def __init__(self, slots: np.ndarray, window: int | None) -> None:
        self.q_sequence, self._window = slots, window
        self.mask_function = _visible(window)

    @property
    def shape(self) -> tuple[int, int]:
        """Return queries and keys."""
        return len(self.q_sequence), len(self.q_sequence)

    def __getitem__(self, index: tuple[slice, slice]) -> np.ndarray:
        """Return a block; one number for one that is visible or hidden as a whole, as are nearly all of a long row."""
        rows, keys = self.q_sequence[index[0]], np.arange(index[1].start, index[1].stop)
        nearest, farthest = rows.min() - keys[-1], rows.max() - keys[0]
        reach = self.shape[0] if self._window is None else self._window
        if nearest >= 0 and farthest < reach:
            return np.full((1, 1), fill_value=True)
        if farthest < 0 or nearest >= reach:
            return np.full((1, 1), fill_value=False)
        block: np.ndarray = self.mask_function(rows[:, None], keys[None, :])
        return block


@lru_cache
def _visible(window: int | None) -> Callable[[Any, Any], Any]:
    if window is None:
        return lambda queries, keys: queries >= keys
    return lambda queries, keys: (queries - (window - 1) <= keys) & (queries >= keys)


def kernel(of: RowKernel) -> Any:
    """Return splash's kernel of a row, with the tables of all devices that share it."""
    slots = np.arange(of.length, dtype=np.int32)
    if of.is_balanced:
        slots = slots.reshape(PIECES * of.devices, -1)[list(balanced_rows.order(of.devices))].reshape(-1)
    return splash.make_splash_mha(
        splash.MultiHeadMask([RowMask(slots, of.window)] * of.heads),
        block_sizes=_block_sizes(of.tiles),
        head_shards=1,
        q_seq_shards=of.devices,
        attn_logits_soft_cap=of.softcap,
        residual_checkpoint_name=of.residuals,
        interpret=of.interpret,
    )


def own_part(made: Any, devices: int) -> Any:
    """Return a kernel with the tables of this device among those that share a row's tokens."""
    if devices == 1:
        return made
    device = lax.axis_index("sequence")

    def own(table: Array) -> Array:
        axis = min(1, table.ndim - 1)  # the slots' own numbers have one axis, tables of blocks heads first
        size = table.shape[axis] // devices
        return lax.dynamic_slice_in_dim(table, device * size, size, axis)

    return jax.tree.map(own, made)


def _block_sizes(tiles: splash_blocks.Tiles) -> Any:
    """Return splash's own form of the tiles."""
    ahead, back, queries = tiles
    return splash.BlockSizes(
        *(ahead.tokens, ahead.tokens, ahead.compute, back.queries, back.tokens, back.compute),
        block_q_dq=None if queries is None else queries.tokens,
        block_kv_dq=None if queries is None else queries.tokens,
        use_fused_bwd_kernel=queries is None,
    )
