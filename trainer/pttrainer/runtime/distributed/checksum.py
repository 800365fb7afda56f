"""Order-independent checksums of arrays: a checkpoint's, and those of weights sent to the devices that sample.

Computed on the devices and equal on every mesh: unsigned sums wrap around, so their order does not matter. Each element
is multiplied by an odd number derived from its index, so swapped elements change the sum. Not a defence against
forgery.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

_BITS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
"""Unsigned integer types by size in bytes."""


def digest(x: Array) -> Array:
    """Return a uint32 checksum of the array's bits."""
    bits = jax.lax.bitcast_convert_type(x, _BITS[x.dtype.itemsize]).astype(jnp.uint32).reshape(-1)
    place = jax.lax.iota(jnp.uint32, bits.size) * jnp.uint32(2654435761) | jnp.uint32(1)
    return jnp.sum(bits * place, dtype=jnp.uint32)


def part_digest(part: Array, starts: Array, shape: Sequence[int]) -> Array:
    """Return what a box of an array, whose first entry is at `starts`, adds to the checksum of the whole of `shape`.

    The boxes into which an array is cut add up to `digest` of it, as uint32.
    """
    bits = jax.lax.bitcast_convert_type(part, _BITS[part.dtype.itemsize]).astype(jnp.uint32)
    index = jnp.zeros(part.shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(part.ndim)):
        along = jax.lax.broadcasted_iota(jnp.uint32, part.shape, axis) + starts[axis].astype(jnp.uint32)
        index = index + along * jnp.uint32(stride % 2**32)
        stride *= shape[axis]
    return jnp.sum(bits * (index * jnp.uint32(2654435761) | jnp.uint32(1)), dtype=jnp.uint32)
