"""The tiles in which a TPU keeps the last two axes of an array. No jax.

The compiler chooses which axis lies along the lanes; what does not fill a tile takes as much memory as if it did.
"""

import math

SUBLANES, LANES = 8, 128
"""Rows and columns of a tile of 32-bit numbers. Kernels' heads are padded to whole lanes, and their rows of tokens to
as many, with tokens of no example."""
SUBLANES_OF_16_BITS = 16


def filled_up(size: int, multiple: int = LANES) -> int:
    """Return the least multiple that holds the size: of lanes, what a head takes as an array's last axis."""
    return -(-size // multiple) * multiple


def in_tiles(shape: tuple[int, ...], rows: int, columns: int) -> int:
    """Return the numbers of an array, with two of its axes filled up to whole tiles."""
    tile = {rows: SUBLANES, columns: LANES}
    return math.prod(filled_up(size, tile.get(axis, 1)) for axis, size in enumerate(shape))


def fills_rows(size: int, parts: int) -> bool:
    """Return True if an axis is cut into so many equal parts that are whole rows of tiles."""
    return size % (SUBLANES * parts) == 0


def is_turned_in_tiles(shape: tuple[int, ...]) -> bool:
    """Return True if an array wastes less with its last two axes exchanged, which is then how it is stored."""
    rows, columns = len(shape) - 2, len(shape) - 1
    return in_tiles(shape, columns, rows) < in_tiles(shape, rows, columns)


def lies_across(shape: tuple[int, ...]) -> bool:
    """Return True if matrices [..., E, X, Y] waste least with E along the lanes, which is then how they are stored.

    Nothing reads one of them from there. So are 128 experts of 2,880 x 360: 128 fills the lanes.
    """
    first, *inner = axes = range(len(shape) - 3, len(shape))

    def least(columns: int) -> int:
        return min(in_tiles(shape, rows, columns) for rows in axes if rows != columns)

    return least(first) < min(map(least, inner))
