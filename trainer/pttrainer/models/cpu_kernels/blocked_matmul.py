"""Matrices in strips [S, K, W], and products with them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from pttrainer.models.cpu_kernels import xla_ffi
from pttrainer.models.cpu_kernels.register_tile import Tile

HEAD = "head_strips"
"""In a tree of weights, beside the head itself, whose other use is as a table of embeddings."""
NAME = "product"
ENOUGH = 1 << 18
"""Multiplications for which a thread is asked."""


def in_strips(matrix_KN: Array, width: int) -> Array:
    """[S, K, W]; the last strip is filled with zeros."""
    K, N = matrix_KN.shape
    padded = jnp.pad(matrix_KN, ((0, 0), (0, -N % width)))
    return padded.reshape(K, -1, width).transpose(1, 0, 2)


def product(x_MK: Array, strips_SKW: Array, target: str) -> Array:
    """x · w [M, S · W], float32. target: the call that XLA knows it by (`program`)."""
    S, _, W = strips_SKW.shape
    out: Array = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct((x_MK.shape[0], S * W), jnp.float32))(x_MK, strips_SKW)
    return out


def code(tile: Tile) -> str:
    """`@product(frame)` of x [M, K] and strips; a strip is a unit of work."""
    job = (("ptr", "x"), ("ptr", "w"), ("ptr", "y"), ("i64", "M"), ("i64", "K"), ("i64", "N"))
    unit = f"""
define private void @strip(ptr %job, i64 %s) {{
{xla_ffi.read(job)}
  %size = mul i64 %K, {tile.width}
  %w.offset = mul i64 %s, %size
  %ws = getelementptr float, ptr %w, i64 %w.offset
  %y.offset = mul i64 %s, {tile.width}
  %ys = getelementptr float, ptr %y, i64 %y.offset
  call void @panel(ptr %x, i64 %K, ptr %ws, i64 {tile.width}, ptr %ys, i64 %N, i64 %M, i64 %K, i1 true)
  ret void
}}
"""
    body = f"""
{xla_ffi.size("M", "x", 0)}
{xla_ffi.size("S", "w", 0)}
{xla_ffi.size("K", "w", 1)}
  %N = mul i64 %S, {tile.width}
{xla_ffi.job(job)}
  %MK = mul i64 %M, %K
  %terms = mul i64 %MK, %N
  call void @share(ptr %functions, ptr %context, ptr @strip, ptr %job, i64 %S, i64 %terms, i64 {ENOUGH})"""
    return unit + xla_ffi.handler(NAME, ("x", "w"), ("y",), body)
