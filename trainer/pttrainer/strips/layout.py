"""Matrices in strips [S, K, W], and products with them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from pttrainer.strips.program import host_tile, registered
from pttrainer.strips.tile import Tile

HEAD = "head_strips"
"""In a tree of weights, beside the head itself, whose other use is as a table of embeddings."""


def in_strips(matrix_KN: Array, width: int) -> Array:
    """[S, K, W]; the last strip is filled with zeros."""
    K, N = matrix_KN.shape
    padded = jnp.pad(matrix_KN, ((0, 0), (0, -N % width)))
    return padded.reshape(K, -1, width).transpose(1, 0, 2)


def product(x_MK: Array, strips_SKW: Array, tile: Tile | None = None) -> Array:
    """x · w [M, S · W], float32. tile: whose strips they are; unset, this processor's."""
    tile = tile or host_tile()
    assert tile is not None
    S, _, W = strips_SKW.shape
    out: Array = jax.ffi.ffi_call(registered(tile), jax.ShapeDtypeStruct((x_MK.shape[0], S * W), jnp.float32))(
        x_MK, strips_SKW
    )
    return out
