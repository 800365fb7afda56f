"""The lanes of a TPU, which kernels' tokens and heads fill up. No jax."""

LANES = 128
"""Lane width of a TPU's memory. Heads are padded to a multiple of it, which they occupy anyway; splash attention works
on tiles of as many tokens, and pads rows with tokens of no example."""


def head_size(head_dim: int) -> int:
    """Return how many numbers a head takes, in a page of a cache and where it is an array's last axis."""
    return -(-head_dim // LANES) * LANES
