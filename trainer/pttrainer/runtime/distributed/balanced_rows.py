"""Rows whose tokens several devices share, ordered so that each has as much causal attention to compute.

Letters: B rows, T tokens, S devices along `sequence`.

The first tokens of a row see few others, the last ones all. Cut into 2·S pieces, a row's first and last piece go to the
first device, the next two from both ends to the second, and so on (as in MaxText's context parallelism). Only the
tokens' numbers travel, when a pass begins, and its results when it ends; between, attention alone knows the order.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.logical_axes import PIECES


def order(devices: int) -> tuple[int, ...]:
    """Return the numbers of a row's pieces as the devices hold them, two each."""
    return tuple(piece for device in range(devices) for piece in (device, 2 * devices - 1 - device))


def balanced(x_BTX: Array) -> Array:
    """Return what belongs to the tokens of rows in the devices' order."""
    devices = sharding.parts("sequence")
    B, T, *rest = x_BTX.shape
    pieces = x_BTX.reshape(B, PIECES * devices, T // (PIECES * devices), *rest)
    ordered_BTX = jnp.take(pieces, jnp.array(order(devices)), axis=1).reshape(x_BTX.shape)
    return sharding.constrain(ordered_BTX, ("batch", "sequence", *(None,) * len(rest)))


def natural(x_BTX: Array) -> Array:
    """Invert `balanced`. Each device sends one piece to the owner of the even pieces, and one to that of the odd."""
    devices = sharding.parts("sequence")
    spec = sharding.spec_of(("batch", "sequence", None))
    routes = [[(order(devices).index(2 * to + odd) // 2, to) for to in range(devices)] for odd in (0, 1)]

    def local(own_BTX: Array) -> Array:
        first, last = jnp.split(own_BTX, 2, axis=1)
        # An even device's first piece is an even one, its last an odd one; of odd devices it is the other way round.
        is_odd = lax.axis_index("sequence") % 2 == 1
        sent = jnp.where(is_odd, last, first), jnp.where(is_odd, first, last)
        arrived = [lax.ppermute(piece, "sequence", route) for piece, route in zip(sent, routes, strict=True)]
        return jnp.concatenate(arrived, axis=1)

    out: Array = jax.shard_map(local, in_specs=spec, out_specs=spec)(x_BTX)
    return out


def natural_rows(x_BTX: Array, devices: int) -> Array:
    """Invert `balanced` for rows that a device holds whole, in the order of the devices."""
    held, pieces = order(devices), jnp.split(x_BTX, PIECES * devices, axis=1)
    return jnp.concatenate([pieces[held.index(piece)] for piece in range(len(pieces))], axis=1)
