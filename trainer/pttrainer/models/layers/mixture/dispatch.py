"""Tokens to the experts' order and back: two sums that are each other's gradient.

Letters: M tokens, k experts per token, R = M·k rows, D model. `order_R` has, for the rows in the order of the experts,
their numbers in the order of the tokens (k rows a token), as `argsort` gives it.

Left to JAX, the gradient of a gather is a scatter that adds in the rows' own numbers, one row at a time. Here both ways
are gathers, and sums are in float32. A token's rows are gathered one by one, because TPUs add vectors faster than
neighbours within one (docs/findings/compilers.md).
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from pttrainer.models.layers.mixture.varying import alike


def dispatch(x_MD: Array, order_R: Array, k: int, is_own_R: Array | None = None) -> Array:
    """Return [R, D]: each token k times, in the order of the experts.

    is_own_R: False where the expert is another device's; nothing comes back from there in the gradient.
    """
    return _dispatch(*_alike(x_MD, order_R, is_own_R), k)


def combine(rows_RD: Array, order_R: Array, k: int, is_own_R: Array | None = None) -> Array:
    """Return [M, D]: the sum of each token's k rows, of those that are own."""
    return _combine(*_alike(rows_RD, order_R, is_own_R), k)


def _alike(x: Array, order_R: Array, is_own_R: Array | None) -> tuple[Array, Array, Array | None]:
    if is_own_R is None:
        x, order_R = alike(x, order_R)
    else:
        x, order_R, is_own_R = alike(x, order_R, is_own_R)
    return x, order_R, is_own_R


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _dispatch(x_MD: Array, order_R: Array, is_own_R: Array | None, k: int) -> Array:
    return x_MD[order_R // k]


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _combine(rows_RD: Array, order_R: Array, is_own_R: Array | None, k: int) -> Array:
    place_Mk = jnp.argsort(order_R).reshape(-1, k)

    def part(i: int) -> Array:
        place_M = place_Mk[:, i]
        rows_MD = rows_RD[place_M]
        if is_own_R is not None:  # before they are widened, or a TPU writes them to memory in 32 bits
            rows_MD = jnp.where(is_own_R[place_M][:, None], rows_MD, 0)
        return rows_MD.astype(jnp.float32)

    total_MD = part(0)
    for i in range(1, k):
        total_MD += part(i)
    return total_MD.astype(rows_RD.dtype)


_dispatch.defvjp(
    lambda x_MD, order_R, is_own_R, k: (_dispatch(x_MD, order_R, is_own_R, k), (order_R, is_own_R)),
    lambda k, kept, rows_RD: (_combine(rows_RD, *kept, k), None, None),
)
_combine.defvjp(
    lambda rows_RD, order_R, is_own_R, k: (_combine(rows_RD, order_R, is_own_R, k), (order_R, is_own_R)),
    lambda k, kept, out_MD: (_dispatch(out_MD, *kept, k), None, None),
)
