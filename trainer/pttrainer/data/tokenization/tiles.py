"""Pictures cut into tiles of one size, with the whole picture behind them as one more: Llama 4's preprocessing.

A picture is put into the rows and columns of tiles that fit it best, without distortion, and filled up with black. All
this is equal to transformers' processor, whose single precision decides between canvases that fit alike, and whose
colours are rounded to bfloat16.

Letters: T tiles, S pixels of a side, H, W height and width, C colour channels.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from pttrainer.data.tokenization import torch_resize

if TYPE_CHECKING:
    from PIL import Image

Canvas = tuple[int, int]
"""Rows and columns of tiles."""


@dataclass(frozen=True)
class TileFormat:
    """Pictures as tiles of `side` pixels, each of so many tokens.

    most: tiles of a picture, without the one that shows it whole. is_filled: pictures become as large as any canvas
    allows; otherwise a small one is enlarged to one tile at most. mean, std, scale: of colours, as in `pixels.Colours`.
    """

    side: int
    tokens_each: int
    most: int = 16
    is_filled: bool = False
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    scale: float = 1 / 255

    def canvas(self, size: tuple[int, int]) -> Canvas:
        """Return the rows and columns for a picture of this width and height."""
        width, height = size
        canvases = np.array(_canvases(self.most))
        sides = canvases.astype(np.float32) * self.side / np.array([height, width], np.float32)
        scales = sides.min(axis=1)
        larger = scales[scales >= 1]
        best = scales.max() if not len(larger) else larger.max() if self.is_filled else larger.min()
        fitting = canvases[scales == best]
        rows, columns = fitting[np.argmin(fitting.prod(axis=1))]
        return int(rows), int(columns)

    def tiles(self, size: tuple[int, int]) -> int:
        """Return the tiles of a picture: if there are several, one more shows it whole."""
        cut = math.prod(self.canvas(size))
        return cut + 1 if cut > 1 else 1

    def runs(self, size: tuple[int, int]) -> list[int]:
        """Return the tokens of each tile."""
        return [self.tokens_each] * self.tiles(size)

    def shape(self, sizes: Iterable[tuple[int, int]]) -> tuple[int, ...]:
        """Return [T, S, S, C] of an array that holds any of these pictures."""
        return max(map(self.tiles, sizes), default=1), self.side, self.side, 3

    def array(self, picture: "Image.Image") -> np.ndarray:
        """Return the tiles [T, S, S, C], row by row, the whole picture last."""
        rows, columns = self.canvas(picture.size)
        S, pixels_HWC = self.side, np.asarray(picture, np.uint8)
        width, height = self._resized(picture.size, (rows, columns))
        canvas_HWC = np.zeros((rows * S, columns * S, 3), np.uint8)
        canvas_HWC[:height, :width] = torch_resize.resized(pixels_HWC, width, height)
        tiles_TSSC = canvas_HWC.reshape(rows, S, columns, S, 3).swapaxes(1, 2).reshape(-1, S, S, 3)
        if len(tiles_TSSC) > 1:
            tiles_TSSC = np.concatenate([tiles_TSSC, torch_resize.resized(pixels_HWC, S, S)[None]])
        return self._levels()[tiles_TSSC, np.arange(3)]

    def _resized(self, size: tuple[int, int], canvas: Canvas) -> tuple[int, int]:
        """Return the width and height of the picture on its canvas."""
        width, height = size
        rows, columns = (each * self.side for each in canvas)
        if self.is_filled:
            bounds = rows, columns
        else:
            bounds = min(max(height, self.side), rows), min(max(width, self.side), columns)
        # A bound is single where it is the canvas's, which is a tensor there, and double where it is the picture's own.
        of_height = _quotient(bounds[0], height, is_single=self.is_filled or rows < max(height, self.side))
        of_width = _quotient(bounds[1], width, is_single=self.is_filled or columns < max(width, self.side))
        if of_width < of_height:
            return bounds[1], max(min(math.floor(height * of_width), bounds[0]), 1)
        return max(min(math.floor(width * of_height), bounds[1]), 1), bounds[0]

    def _levels(self) -> np.ndarray:
        """Return what becomes of each level of each channel [256, C]: every step is rounded to bfloat16."""
        half = ml_dtypes.bfloat16
        mean, std = (np.asarray(each, half).astype(np.float32) for each in (self.mean, self.std))
        scaled = (np.arange(256, dtype=np.float32)[:, None] * np.float32(self.scale)).astype(half)
        centred = (scaled.astype(np.float32) - mean).astype(half)
        levels: np.ndarray = (centred.astype(np.float32) / std).astype(half).astype(np.float32)
        return levels


def _quotient(bound: int, length: int, *, is_single: bool) -> float | np.float32:
    return np.float32(bound) / np.float32(length) if is_single else bound / length


@lru_cache
def _canvases(most: int) -> list[Canvas]:
    """Return every canvas of at most so many tiles, larger ones first, those of one shape together."""
    by_shape: dict[float, list[Canvas]] = {}
    for count in range(most, 0, -1):
        for rows in range(1, count + 1):
            if count % rows == 0:
                columns = count // rows
                by_shape.setdefault(rows / columns, []).append((rows, columns))
    return [canvas for canvases in by_shape.values() for canvas in canvases]
