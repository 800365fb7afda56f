"""Column-blocked matrices [S, K, W], and products with them."""

import jax
import jax.numpy as jnp
from jax import Array

from pttrainer.runtime.cpu_kernels import xla_ffi
from pttrainer.runtime.cpu_kernels.register_tile import RegisterTile

NAME = "product"
MIN_TERMS_PER_THREAD = 1 << 18
"""Multiply-adds per thread."""


def to_column_blocks(matrix_KN: Array, width: int) -> Array:
    """Return [S, K, W]; the last block is padded with zeros."""
    K, N = matrix_KN.shape
    padded = jnp.pad(matrix_KN, ((0, 0), (0, -N % width)))
    return padded.reshape(K, -1, width).transpose(1, 0, 2)


def product(x_MK: Array, blocks_SKW: Array, target: str) -> Array:
    """Return x · w [M, S · W], float32. target: name of the XLA call (`jit`)."""
    S, _, W = blocks_SKW.shape
    out: Array = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct((x_MK.shape[0], S * W), jnp.float32))(x_MK, blocks_SKW)
    return out


def code(tile: RegisterTile) -> str:
    """Return the code of `@product(frame)` of x [M, K] and column blocks; a block is a unit of work."""
    job = (("ptr", "x"), ("ptr", "w"), ("ptr", "y"), ("i64", "M"), ("i64", "K"), ("i64", "N"))
    unit = f"""
define private void @strip(ptr %job, i64 %s) {{
{xla_ffi.read(job)}
  %size = mul i64 %K, {tile.width}
  %w.offset = mul i64 %s, %size
  %ws = getelementptr float, ptr %w, i64 %w.offset
  %y.offset = mul i64 %s, {tile.width}
  %ys = getelementptr float, ptr %y, i64 %y.offset
  call void @panel(ptr %x, i64 %K, i64 1, ptr %ws, i64 {tile.width}, ptr %ys, i64 %N, i64 %M, i64 %K, i1 true)
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
  call void @share(ptr %functions, ptr %context, ptr @strip, ptr %job, i64 %S, i64 %terms,
    i64 {MIN_TERMS_PER_THREAD})"""
    return unit + xla_ffi.handler(NAME, ("x", "w"), ("y",), body)
