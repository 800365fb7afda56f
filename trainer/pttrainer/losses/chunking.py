"""Tokens in chunks, those that count first: the output head is applied a piece at a time.

Letters: B rows, T tokens, C tokens of a row in a chunk, M chunks, V vocabulary, X any further axes.

Tokens that do not count (mask 0: prompts, padding) are sorted behind those that do, row by row, so that chunks in which
none counts come last and can be skipped. Where the mesh splits the tokens of a row, its pieces are rows here: sorting a
whole row would gather it on every device.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from pttrainer.losses.chunk_size import largest_chunk
from pttrainer.runtime.distributed import sharding


class Chunks(NamedTuple):
    """The order of each row's tokens.

    order_BT: the tokens, those that count first; back_BT: its inverse. B and T are those of the pieces, if rows are
    split.
    """

    order_BT: Array
    back_BT: Array
    size: int
    pieces: int = 1

    def split(self, x_BTX: Array) -> Array:
        """Reshape [B, T, …] to [M, B, C, …]; the last chunk is padded with zeros, which do not count."""
        x_BTX = _take(sharding.sequence_rows(x_BTX, self.pieces), self.order_BT)
        B, T = x_BTX.shape[:2]
        M = -(-T // self.size)
        padded = jnp.pad(x_BTX, ((0, 0), (0, M * self.size - T)) + ((0, 0),) * (x_BTX.ndim - 2))
        return jnp.moveaxis(padded.reshape(B, M, self.size, *x_BTX.shape[2:]), 1, 0)

    def join(self, x_MBCX: Array) -> Array:
        """Invert `split`."""
        M, B, C = x_MBCX.shape[:3]
        rows = jnp.moveaxis(x_MBCX, 0, 1).reshape(B, M * C, *x_MBCX.shape[3:])
        return sharding.whole_rows(_take(rows[:, : self.order_BT.shape[1]], self.back_BT), self.pieces)


def chunks(mask_BT: Array, size: int) -> Chunks:
    """Return the chunks of `size` tokens per row for this mask."""
    pieces = sharding.pieces("sequence", mask_BT.shape[1])
    order_BT = jnp.argsort(sharding.sequence_rows(mask_BT, pieces) <= 0, axis=1, stable=True)
    return Chunks(order_BT, jnp.argsort(order_BT, axis=1), size, pieces)


def chunk_size(B: int, T: int, V: int, D: int = 0, *, sums_embedding: bool = False) -> int:
    """Return tokens per row and chunk on the mesh in context. D, sums_embedding: as in `largest_chunk`."""
    pieces = sharding.pieces("sequence", T)
    rows, tokens, (platform, _) = B * pieces, T // pieces, sharding.chip()
    return largest_chunk(rows, tokens, V, sharding.devices(), platform, D, sums_embedding=sums_embedding)


def _take(x_BTX: Array, order_BT: Array) -> Array:
    index = order_BT if x_BTX.ndim == 2 else order_BT[(..., *[None] * (x_BTX.ndim - 2))]
    return jnp.take_along_axis(x_BTX, index, axis=1)
