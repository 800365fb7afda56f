"""Pixels as a vision tower reads them, equal to transformers' image processors: resized, scaled, normalised.

Letters: H, W height and width, C colour channels (3), N patches, X numbers of a patch.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pttrainer.data.tokenization.image_patches import PLACE
from pttrainer.data.tokenization.tiles import TileFormat
from pttrainer.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

BILINEAR = 2
BICUBIC = 3
FILTERS = (0, 1, 2, 3, 4, 5)
"""Pillow's numbers of these filters, and of all: nearest, Lanczos, bilinear, bicubic, box, Hamming."""
MOST_ASPECT = 200
"""How many times longer a side may be than the other, where a picture keeps its sides."""


Size = tuple[int, int]
"""Width and height of a picture."""


@dataclass(frozen=True)
class Colours:
    """What becomes of colours. scale: of a channel's 0 to 255; resample: Pillow's number of the filter of resizing."""

    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    scale: float = 1 / 255
    resample: int = BILINEAR

    def pixels(self, picture: "Image.Image", size: Size) -> np.ndarray:
        """Return a resized picture [H, W, C] as (channel · scale - mean) / std in float32."""
        pixels_HWC = np.asarray(picture.resize(size, resample=self.resample), np.uint8)
        scaled = pixels_HWC.astype(np.float32) * np.float32(self.scale)
        normalised: np.ndarray = (scaled - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        return normalised


@dataclass(frozen=True)
class PixelFormat:
    """Pictures that all become one size."""

    height: int
    width: int
    colours: Colours = Colours()

    def shape(self, sizes: Iterable[Size]) -> tuple[int, ...]:
        """Return [H, W, C] of an array that holds any of these pictures."""
        del sizes
        return self.height, self.width, 3

    def array(self, picture: "Image.Image") -> np.ndarray:
        """Return the pixels [H, W, C]."""
        return self.colours.pixels(picture, (self.width, self.height))


@dataclass(frozen=True)
class PatchFormat:
    """Pictures that nearly keep their sides, as patches (`image_patches`).

    patch: pixels of a side; merge: patches of a side of a token's square. least, most: pixels of a resized picture.
    """

    patch: int
    merge: int
    least: int
    most: int
    colours: Colours = Colours(resample=BICUBIC)

    def resized(self, size: Size) -> Size:
        """Return the size of the resized picture: multiples of a token's side, within the bounds; raise DataError."""
        width, height = size
        if max(size) > MOST_ASPECT * min(size):
            raise DataError(
                f"an image of {width} x {height} pixels; accepted: a side at most {MOST_ASPECT} times the other"
            )
        side = self.patch * self.merge
        sides = [round(each / side) * side for each in size]
        if math.prod(sides) > self.most:
            factor = math.sqrt(width * height / self.most)
            sides = [max(side, math.floor(each / factor / side) * side) for each in size]
        elif math.prod(sides) < self.least:
            factor = math.sqrt(self.least / (width * height))
            sides = [math.ceil(each * factor / side) * side for each in size]
        return sides[0], sides[1]

    def runs(self, size: Size) -> list[int]:
        """Return the tokens of a picture that nothing parts; raise DataError."""
        return [self.tokens(size)]

    def tokens(self, size: Size) -> int:
        """Return the tokens of a picture; raise DataError."""
        return math.prod(self.resized(size)) // (self.patch * self.merge) ** 2

    def shape(self, sizes: Iterable[Size]) -> tuple[int, ...]:
        """Return [N, X] of an array that holds any of these pictures."""
        return max(map(self.tokens, sizes), default=1) * self.merge**2, PLACE + 3 * self.patch**2

    def array(self, picture: "Image.Image") -> np.ndarray:
        """Return the patches [N, X]: row + 1, column + 1, then pixels, channel by channel; square after square."""
        width, height = self.resized(picture.size)
        P, m, rows, columns = self.patch, self.merge, height // self.patch, width // self.patch
        pixels_HWC = self.colours.pixels(picture, (width, height))
        squares = pixels_HWC.reshape(rows // m, m, P, columns // m, m, P, 3).transpose(0, 3, 1, 4, 6, 2, 5)
        places = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), axis=-1) + 1
        places = places.reshape(rows // m, m, columns // m, m, PLACE).swapaxes(1, 2)
        patches_NX = np.concatenate([places.reshape(-1, PLACE), squares.reshape(rows * columns, -1)], axis=1)
        return patches_NX.astype(np.float32)


@dataclass(frozen=True)
class SidesFormat(PatchFormat):
    """Pictures that keep their proportions, with at most `longest` pixels of a side, filled up to whole tokens.

    Their lines of tokens are parted. There are no bounds of area.
    """

    least: int = 0
    most: int = 0
    longest: int = 1024

    def resized(self, size: Size) -> Size:
        """Return the size of the resized picture."""
        ratio, side = max(max(size) / self.longest, 1.0), self.patch * self.merge
        width, height = (max(-(-math.floor(each / ratio) // side), 1) * side for each in size)
        return width, height

    def runs(self, size: Size) -> list[int]:
        """Return the tokens of each line of a picture."""
        width, height = (each // (self.patch * self.merge) for each in self.resized(size))
        return [width] * height


@dataclass(frozen=True)
class BudgetFormat(PatchFormat):
    """Pictures that keep their proportions and become as large as `tokens_most` tokens allow, in whole tokens."""

    least: int = 0
    most: int = 0
    tokens_most: int = 280

    def resized(self, size: Size) -> Size:
        """Return the size of the resized picture: the largest sides within the tokens, at least one token each."""
        side = self.patch * self.merge
        factor = math.sqrt(self.tokens_most * side**2 / math.prod(size))
        width, height = (math.floor(factor * each / side) for each in size)
        if height == 0:
            width, height = min(size[0] // size[1], self.tokens_most), 1
        elif width == 0:
            width, height = 1, min(size[1] // size[0], self.tokens_most)
        return width * side, height * side


AnyFormat = PixelFormat | PatchFormat | TileFormat
