"""The order in which a device keeps an array's axes, said where the compiler's own choice costs a copy."""

from jax import Array
from jax.experimental.layout import Layout, with_layout_constraint


def row_major(x: Array) -> Array:
    """Pin an array, and its gradient, to the order of its axes: the last one varies fastest."""
    pinned: Array = with_layout_constraint(x, Layout(tuple(range(x.ndim))))
    return pinned
