"""Images of any size as arrays: a patch is [row + 1, column + 1, numbers…], and zeros where an image has no more.

An image's patches follow each other in squares that become a token, row by row. So a row of images is one array,
whatever their sizes, and what computes needs no other. Letters: N patches.
"""

from typing import Any

PLACE = 2
"""The numbers of a patch before its pixels."""


def grid(patches_X: Any) -> Any:
    """Return rows and columns [..., 2] of images [..., N, numbers], 0 for none; arrays of numpy or jax."""
    return patches_X[..., :PLACE].max(axis=-2).astype("int32")
