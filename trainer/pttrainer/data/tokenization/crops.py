"""Wide and tall pictures shown a second time, in crops: Gemma 3's pan and scan, as transformers has it.

The picture and each crop become arrays of one size, as if they were pictures of their own.

Letters: H, W height and width, C colour channels (3).
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ptapi.spec.model import MOST_CROPS
from pttrainer.data.tokenization.pixels import AnyFormat, PixelFormat, Size

if TYPE_CHECKING:
    from PIL import Image

Box = tuple[int, int, int, int]
"""The left, upper, right and lower bound of a crop; the last two are outside."""


@dataclass(frozen=True)
class CropFormat(PixelFormat):
    """Pictures of one size, and crops of those with a side at least `ratio` times the other.

    least: pixels of a crop's shorter side; most: crops of a picture. The defaults are transformers'.
    """

    least: int = 256
    most: int = MOST_CROPS
    ratio: float = 1.2

    def boxes(self, size: Size) -> list[Box]:
        """Return the crops of a picture of this width and height, along its longer side; none if they are too small."""
        width, height = size
        long, short = max(size), min(size)
        if long / short < self.ratio:
            return []
        count = min(max(min(math.floor(long / short + 0.5), long // self.least), 2), self.most)
        length = -(-long // count)
        if min(length, short) < self.least:
            return []
        bounds = [(start, min(start + length, long)) for start in range(0, long, length)]
        if width >= height:
            return [(start, 0, end, height) for start, end in bounds]
        return [(0, start, width, end) for start, end in bounds]

    def arrays(self, picture: "Image.Image") -> list[np.ndarray]:
        """Return the pixels [H, W, C] of the picture and of each crop."""
        return [self.array(picture), *(self.array(picture.crop(box)) for box in self.boxes(picture.size))]


def count(how: AnyFormat, size: Size) -> int:
    """Return the arrays that a picture of this width and height becomes."""
    return 1 + len(how.boxes(size)) if isinstance(how, CropFormat) else 1


def arrays(how: AnyFormat, picture: "Image.Image") -> list[np.ndarray]:
    """Return what a tower reads of a picture."""
    return how.arrays(picture) if isinstance(how, CropFormat) else [how.array(picture)]
