"""Products of matrices on one CPU, with gradients that XLA's library for CPUs computes.

XLA gives a product to YNNPACK, but not one whose left side is transposed, as the gradient of a matrix is. That goes to
Eigen, which takes up to 1.7 times as long where rows are powers of two wide, and longer still on a busy host. Here the
narrower side is transposed first, which costs little, and both sides are then read as they lie.

Letters: N tokens, X inputs of a matrix, Y its outputs.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from pttrainer.runtime.distributed import sharding

LEAST_TOKENS = 256
"""Of fewer tokens a product takes no longer than to transpose its result."""


def are_used(dtype: jnp.dtype) -> bool:
    """Return True for arrays of float32 on a mesh of one CPU. Elsewhere the compiler chooses."""
    return dtype == jnp.float32 and sharding.devices() == 1 and sharding.chip()[0] == "cpu"


def product(x_NX: Array, w_XY: Array) -> Array:
    """Return x·w, [N, Y]."""
    out: Array = _product(x_NX, w_XY) if are_used(x_NX.dtype) else x_NX @ w_XY
    return out


def transposed_product(x_NX: Array, d_NY: Array) -> Array:
    """Return xᵀ·d, [X, Y], from a transposed copy of x, so x should be the narrower side.

    Without the barrier the compiler would not copy, but multiply with a transposed side.
    """
    x_XN: Array = lax.optimization_barrier(x_NX.T)
    return x_XN @ d_NY


@jax.custom_vjp
def _product(x_NX: Array, w_XY: Array) -> Array:
    return x_NX @ w_XY


def _forward(x_NX: Array, w_XY: Array) -> tuple[Array, tuple[Array, Array]]:
    return x_NX @ w_XY, (x_NX, w_XY)


def _backward(saved: tuple[Array, Array], d_NY: Array) -> tuple[Array, Array]:
    x_NX, w_XY = saved
    (N, X), Y = x_NX.shape, d_NY.shape[1]
    if X <= Y:
        d_XY = transposed_product(x_NX, d_NY)
    elif N >= LEAST_TOKENS:
        d_XY = lax.optimization_barrier(transposed_product(d_NY, x_NX)).T
    else:
        d_XY = x_NX.T @ d_NY
    return d_NY @ w_XY.T, d_XY


_product.defvjp(_forward, _backward)
