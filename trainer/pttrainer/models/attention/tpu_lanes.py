"""The padding of heads in a paged cache. No jax."""

LANES = 128
"""Lane width of a TPU's memory. Heads of a paged cache are padded to a multiple of it, which they occupy anyway."""


def head_size(head_dim: int) -> int:
    """Return the padded head size in a page."""
    return -(-head_dim // LANES) * LANES
