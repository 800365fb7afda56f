"""The images of a packed row or of a prompt: their pixels, and which embedding each of its tokens has.

Letters: T tokens, M images of a row, S pixels of a side (of pictures of one size; [N, X] patches of others).
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from pttrainer.batch import Images
from pttrainer.data.sources.images import decoding
from pttrainer.data.sources.images.decoding import CheckedImage
from pttrainer.data.tokenization import crops
from pttrainer.data.tokenization.chat_template import Chat
from pttrainer.data.tokenization.image_slots import runs_of, slots
from pttrainer.data.tokenization.image_tokens import ImageTokens
from pttrainer.data.tokenization.pixels import AnyFormat

PIXELS, SLOTS = "pixels", "image_slots"
"""Names of the arrays."""


@dataclass(frozen=True)
class RowImages:
    """How rows carry images. most: arrays of a row; shape: of any of them, so that all rows have one shape."""

    tokens: ImageTokens
    format: AnyFormat
    most: int
    shape: tuple[int, ...]

    def arrays(
        self, examples: Sequence[tuple[np.ndarray, Sequence[CheckedImage]]], width: int
    ) -> dict[str, np.ndarray]:
        """Return pixels [M, S, S, 3] and slots [T] of a row of examples, each with its inputs' ids and images."""
        slots_T = np.zeros(width, np.int32)
        at = place = 0
        for ids, images in examples:
            own = self.slots(ids, images)
            slots_T[at : at + len(ids)] = np.where(own > 0, own + place * self.tokens.most, 0)
            at += len(ids)
            place += _count(self.format, images)
        return {PIXELS: self.pixels([image for _, images in examples for image in images]), SLOTS: slots_T}

    def slots(self, ids_T: np.ndarray, images: Sequence[CheckedImage]) -> np.ndarray:
        """Return the slots [T] of one example's tokens."""
        runs = [run for image in images for run in self.tokens.runs(image.size)]
        return slots(ids_T, self.tokens.part_id, runs, self.tokens.most, "a row's images")

    def pixels(self, images: Sequence[CheckedImage]) -> np.ndarray:
        """Return pixels [M, S, S, 3], zeros behind the last image."""
        pixels_MSSC = np.zeros((self.most, *self.shape), np.float32)
        pictures = (decoding.picture(image.reference) for image in images)
        for place, own in enumerate(own for picture in pictures for own in crops.arrays(self.format, picture)):
            pixels_MSSC[place, : len(own)] = own
        return pixels_MSSC

    def pixels_of_rows(self, of_rows: Sequence[Sequence[CheckedImage]]) -> np.ndarray:
        """Return pixels [B, M, S, S, 3] of rows, decoded at once on several cores."""
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            return np.stack(list(threads.map(self.pixels, of_rows)))


def of_chat(chat: Chat, of_rows: Sequence[Sequence[CheckedImage]]) -> RowImages | None:
    """Return how rows with these images carry them; None if none has any."""
    if chat.images is None or chat.pixels is None:
        return None
    most = max((_count(chat.pixels, images) for images in of_rows), default=0)
    if not most:
        return None
    shape = chat.pixels.shape(image.size for images in of_rows for image in images)
    return RowImages(chat.images, chat.pixels, most, shape)


def moved(chat: Chat, ids: Sequence[int], images: Images | None) -> Images | None:
    """Return the images of a prompt that now has these tokens."""
    if images is None or chat.images is None:
        return None
    parts = chat.images
    runs = runs_of(images.slots_BT[0], parts.most)
    slots_T = slots(np.array(ids), parts.part_id, runs, parts.most, "an episode's opening")
    return images._replace(slots_BT=slots_T[None])


def of_prompts(chat: Chat, prompts: Sequence[tuple[Sequence[int], Sequence[CheckedImage]]]) -> list[Images | None]:
    """Return each prompt's images as those of a batch of one row. Decoded at once on several cores."""
    of_rows = of_chat(chat, [images for _, images in prompts])
    if of_rows is None:
        return [None] * len(prompts)

    def one(prompt: tuple[Sequence[int], Sequence[CheckedImage]]) -> Images | None:
        ids, images = prompt
        if not images:
            return None
        pixels_MSSC = replace(of_rows, most=_count(of_rows.format, images)).pixels(images)
        return Images(pixels_MSSC[None], of_rows.slots(np.array(ids), images)[None])

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(one, prompts))


def _count(how: AnyFormat, images: Sequence[CheckedImage]) -> int:
    return sum(crops.count(how, image.size) for image in images)
