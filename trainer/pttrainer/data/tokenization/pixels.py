"""Pixels as a vision tower reads them, equal to transformers' image processors: resized, scaled, normalised.

Letters: H, W height and width, C colour channels (3).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

BILINEAR = 2
"""Pillow's number of this filter."""


@dataclass(frozen=True)
class PixelFormat:
    """What becomes of a picture. resample: Pillow's number of a filter; scale: of a channel's 0 to 255."""

    height: int
    width: int
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    scale: float = 1 / 255
    resample: int = BILINEAR

    def resized(self, picture: "Image.Image") -> np.ndarray:
        """Return [H, W, C] in 8 bits: a quarter of the bytes that go to a device."""
        size = (self.width, self.height)
        return np.asarray(picture.resize(size, resample=self.resample), np.uint8)

    def normalised(self, pixels_HWC: Any) -> Any:
        """Return (channel · scale - mean) / std in float32, of an array of numpy or jax."""
        scaled = pixels_HWC.astype(np.float32) * np.float32(self.scale)
        return (scaled - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
