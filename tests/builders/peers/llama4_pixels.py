"""Pictures of many proportions, and what Llama 4's processor is told to make of them."""

import numpy as np
from tests.builders.pictures import drawn

from pttrainer.data.tokenization.tiles import TileFormat

COLOURS = {"mean": (0.48, 0.46, 0.41), "std": (0.27, 0.26, 0.28)}
PICTURES: dict[str, tuple[tuple[int, int], TileFormat]] = {
    "one": ((9, 9), TileFormat(10, 1, 4)),
    "tiny": ((1, 1), TileFormat(10, 1, 16)),
    "exact": ((20, 20), TileFormat(10, 1, 4)),
    "square": ((17, 18), TileFormat(10, 1, 9, **COLOURS)),
    "wide": ((64, 13), TileFormat(10, 1, 5)),
    "tall": ((3, 59), TileFormat(10, 1, 6, **COLOURS)),
    "large": ((160, 133), TileFormat(8, 1, 12)),
    "filled": ((23, 9), TileFormat(10, 1, 6, is_filled=True)),
    "filled small": ((5, 7), TileFormat(9, 1, 4, is_filled=True)),
    "released": ((700, 340), TileFormat(14, 1, 16)),
}
"""Each with its width and height."""


def made(name: str) -> np.ndarray:
    """Our tiles of a picture [T, S, S, C]."""
    size, format_ = PICTURES[name]
    return format_.array(drawn(*size, seed=sum(size)))
