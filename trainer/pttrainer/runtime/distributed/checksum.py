"""Order-independent checksums of arrays: a checkpoint's, and those of weights sent to the devices that sample.

Computed on the devices and equal on every mesh: unsigned sums wrap around, so their order does not matter. Each element
is multiplied by an odd number derived from its index, so swapped elements change the sum. Not a defence against
forgery.
"""

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
