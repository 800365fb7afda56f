"""The images of a packed row: their pixels, and which embedding each of the row's tokens has.

Letters: T tokens, M images of a row, S pixels of a side.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pttrainer.batch import Images
from pttrainer.data.sources.images import decoding
from pttrainer.data.sources.images.decoding import CheckedImage
from pttrainer.data.tokenization.chat_template import Chat
from pttrainer.data.tokenization.image_slots import slots
from pttrainer.data.tokenization.image_tokens import ImageTokens
from pttrainer.data.tokenization.pixels import PixelFormat

PIXELS, SLOTS = "pixels", "image_slots"
"""Names of the arrays."""


@dataclass(frozen=True)
class RowImages:
    """How rows carry images. most: of a row, so that all rows have one shape."""

    tokens: ImageTokens
    format: PixelFormat
    most: int

    def arrays(
        self, examples: Sequence[tuple[np.ndarray, Sequence[CheckedImage]]], width: int
    ) -> dict[str, np.ndarray]:
        """Return pixels [M, S, S, 3] and slots [T] of a row of examples, each with its inputs' ids and images."""
        pixels_MSSC = np.zeros((self.most, self.format.height, self.format.width, 3), np.float32)
        slots_T = np.zeros(width, np.int32)
        at = place = 0
        for ids, images in examples:
            own = slots(ids, self.tokens.part_id, self.tokens.count, len(images), "a row's images")
            slots_T[at : at + len(ids)] = np.where(own > 0, own + place * self.tokens.count, 0)
            at += len(ids)
            for image in images:
                picture = decoding.picture(image.reference)
                pixels_MSSC[place] = self.format.normalised(self.format.resized(picture))
                place += 1
        return {PIXELS: pixels_MSSC, SLOTS: slots_T}


def of_prompt(chat: Chat, ids: Sequence[int], images: Sequence[CheckedImage]) -> Images | None:
    """Return the images of a prompt as those of a batch of one row."""
    if chat.images is None or chat.pixels is None or not images:
        return None
    arrays = RowImages(chat.images, chat.pixels, len(images)).arrays([(np.array(ids), images)], len(ids))
    return Images(arrays[PIXELS][None], arrays[SLOTS][None])
