"""Inside a `shard_map`: along which axes of the mesh arrays differ between devices.

Where devices have rows of their own for the same matrices, or matrices of their own for the same rows, a gradient is a
sum over devices. JAX adds it where an array is declared different, but not inside a `custom_vjp`.
"""

import jax
from jax import Array, lax


def alike(*arrays: Array) -> tuple[Array, ...]:
    """Return the arrays, each declared to differ along all axes along which any of them does."""
    return tuple(varying_as(each, *arrays) for each in arrays)


def varying_as(x: Array, *others: Array) -> Array:
    """Declare that an array differs between devices along the axes along which any of the others does."""
    axes = frozenset[str]().union(*(_varying(other) for other in others)) - _varying(x)
    return lax.pcast(x, tuple(sorted(axes)), to="varying") if axes else x


def _varying(x: Array) -> frozenset[str]:
    axes: frozenset[str] = jax.typeof(x).manual_axis_type.varying
    return axes
