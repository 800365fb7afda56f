"""Resize pictures as PyTorch does: bilinear, with antialiasing, in whole numbers.

Pillow's algorithm (a triangle as wide as a pixel of the smaller side, columns first, 8 bits between the two passes),
but with weights of 16 bits, so that about one number in 300 differs by 1. Processors that exist for PyTorch alone round
so.

Letters: H, W height and width, C colour channels, O pixels of a side of the result, K weights of one of them.
"""

import math

import numpy as np

MOST_BITS = 22
"""Behind the point of a weight, at most."""
SIXTEEN = 2**15
"""One more than the largest weight."""


def resized(pixels_HWC: np.ndarray, width: int, height: int) -> np.ndarray:
    """Return 8-bit pixels [height, width, C]."""
    turned_WHC = _along_first(np.ascontiguousarray(pixels_HWC.swapaxes(0, 1)), width)
    return _along_first(np.ascontiguousarray(turned_WHC.swapaxes(0, 1)), height)


def _along_first(pixels_HWC: np.ndarray, size: int) -> np.ndarray:
    if len(pixels_HWC) == size:
        return pixels_HWC
    firsts_O, weights_OK = _weights(len(pixels_HWC), size)
    bits = _bits(float(weights_OK.max()))
    whole_OK = np.floor(weights_OK * 2**bits + 0.5)
    resized_OX, pixels_HX = np.empty((size, pixels_HWC[0].size), np.uint8), pixels_HWC.reshape(len(pixels_HWC), -1)
    for place, (first, whole_K) in enumerate(zip(firsts_O, whole_OK, strict=True)):
        rows_KX = pixels_HX[first : first + len(whole_K)].astype(np.float64)
        total_X = whole_K[: len(rows_KX)] @ rows_KX  # whole numbers below 2**53, so exact, and by BLAS
        resized_OX[place] = np.minimum((total_X + 2 ** (bits - 1)) / 2**bits, 255)
    return resized_OX.reshape(size, *pixels_HWC.shape[1:])


def _weights(inputs: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first pixel that each one of the result is a mean of, and the weights from there, zeros behind."""
    scale = inputs / outputs
    reach = max(scale, 1.0)
    centres_O = scale * (np.arange(outputs) + 0.5)
    firsts_O = np.maximum((centres_O - reach + 0.5).astype(np.int64), 0)
    ends_O = np.minimum((centres_O + reach + 0.5).astype(np.int64), inputs)
    places_OK = firsts_O[:, None] + np.arange(2 * math.ceil(reach) + 1)
    weights_OK = np.maximum(1.0 - np.abs((places_OK - centres_O[:, None] + 0.5) / reach), 0.0)
    weights_OK[places_OK >= ends_O[:, None]] = 0.0
    return firsts_O, weights_OK / weights_OK.sum(axis=1, keepdims=True)


def _bits(largest: float) -> int:
    """Return how many bits behind the point leave the largest weight within 16."""
    fitting = (bits for bits in range(MOST_BITS) if int(0.5 + largest * 2 ** (bits + 1)) >= SIXTEEN)
    return next(fitting, MOST_BITS)
