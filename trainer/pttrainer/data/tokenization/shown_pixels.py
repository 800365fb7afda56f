"""Pictures of the arrays that a vision tower reads: the way back from `pixels`, for an engine that has its own.

They are the resized pictures, exactly: a processor that is given one resizes nothing and comes to the same numbers.
Not of tiles: the one that shows a picture whole was made of more pixels than all the others together keep.

Letters: H, W height and width, C colour channels (3), P pixels of a patch's side, R and K rows and columns of tokens.
"""

import numpy as np

from pttrainer.data.tokenization.image_patches import PLACE, grid
from pttrainer.data.tokenization.pixels import Colours, PatchFormat, PixelFormat


def shown(pixels: np.ndarray, how: PixelFormat | PatchFormat) -> np.ndarray:
    """Return the picture [H, W, C] of 8-bit colours that these pixels, or patches, came from."""
    return _colours(_placed(pixels, how) if isinstance(how, PatchFormat) else pixels, how.colours)


def _placed(patches_NX: np.ndarray, how: PatchFormat) -> np.ndarray:
    """Return the pixels [H, W, C] of a list of patches."""
    P, m = how.patch, how.merge
    rows, columns = (int(side) for side in grid(patches_NX))
    own = patches_NX[: rows * columns, PLACE:].reshape(rows // m, columns // m, m, m, 3, P, P)
    return own.transpose(0, 2, 5, 1, 3, 6, 4).reshape(rows * P, columns * P, 3)


def _colours(pixels_HWC: np.ndarray, colours: Colours) -> np.ndarray:
    scaled = pixels_HWC * np.asarray(colours.std, np.float32) + np.asarray(colours.mean, np.float32)
    levels: np.ndarray = np.clip(np.round(scaled / np.float32(colours.scale)), 0, 255).astype(np.uint8)
    return levels
