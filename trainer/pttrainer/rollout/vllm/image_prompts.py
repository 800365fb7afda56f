"""Prompts with images as vLLM takes them: a mark where the trainer has all tokens of an image, and the pictures.

vLLM puts the tokens in itself, as its processor of the model counts them, and says which it came to: `check_tokens`
compares them with the trainer's, so that nothing is trained on another prompt than was sampled from. The pictures are
those that the trainer's tower reads, resized and upright, as PNG.
"""

import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from pttrainer.batch import Images
from pttrainer.data.tokenization.chat_template import Chat
from pttrainer.data.tokenization.image_tokens import ImageTokens
from pttrainer.data.tokenization.pixels import PatchFormat, PixelFormat
from pttrainer.data.tokenization.shown_pixels import shown
from pttrainer.data.tokenization.tiles import TileFormat
from pttrainer.data.tokenization.tokenizer import Tokenizer
from pttrainer.errors import ConfigError
from pttrainer.rollout.engine import Prompt


class ImagePrompt(NamedTuple):
    """A prompt with images. tokens: with a mark for each; pictures: their files, in their order."""

    tokens: tuple[int, ...]
    pictures: tuple[bytes, ...]


def image_prompts(chat: Chat, prompts: Sequence[Prompt]) -> list[ImagePrompt | None]:
    """Return what is sent of each prompt with images, None for the others. Prompts may share an array of pixels."""
    of_arrays = {id(each.images.pixels_BMSSC): each.images.pixels_BMSSC for each in prompts if each.images is not None}
    if not of_arrays:
        return [None] * len(prompts)
    assert chat.images is not None
    assert chat.pixels is not None
    assert not isinstance(chat.pixels, TileFormat), "refused when the engine is built"
    how = chat.pixels
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        files = threads.map(lambda pixels: _files(pixels[0], how), of_arrays.values())
        pictures = dict(zip(of_arrays, files, strict=True))

    def one(prompt: Prompt, images: Images, parts: ImageTokens) -> ImagePrompt:
        ids = with_marks(prompt.tokens, np.asarray(images.slots_BT[0]), parts, chat.tokenizer)
        return ImagePrompt(tuple(ids), pictures[id(images.pixels_BMSSC)])

    return [None if prompt.images is None else one(prompt, prompt.images, chat.images) for prompt in prompts]


def with_marks(ids: Sequence[int], slots_T: np.ndarray, images: ImageTokens, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens with one mark for each image, in place of all that stand for it.

    Empty lines around an image are part of what stands for it; a tokenizer may have joined them with other line ends.
    """
    mark = tokenizer.engine.token_to_id(images.mark)
    assert mark is not None, "a template writes an image as one token"
    image_T = np.where(slots_T > 0, (slots_T - 1) // images.most, -1)
    tokens_around = [1 if text.strip("\n") else 0 for text in (images.before, images.after)]
    written = list(ids)
    for image in reversed(range(int(image_T.max(initial=-1)) + 1)):
        places = np.flatnonzero(image_T == image)
        first, end = int(places[0]) - tokens_around[0], int(places[-1]) + 1 + tokens_around[1]
        head = _without_lines(written[:first], images.before.count("\n"), tokenizer, at_end=True)
        tail = _without_lines(written[end:], images.after.count("\n"), tokenizer, at_end=False)
        written = [*head, mark, *tail]
    return written


def check_tokens(named: str, sent: Sequence[int], received: Sequence[int]) -> None:
    """Compare the prompt as the trainer has it with what vLLM made of it; raise ConfigError if they differ.

    named: what vLLM is, for the message.
    """
    if list(received) == list(sent):
        return
    pairs = enumerate(zip(sent, received, strict=False))
    place = next((n for n, (one, other) in pairs if one != other), min(len(sent), len(received)))
    raise ConfigError(
        f"spec.rollout.engine: {named} makes {len(received)} tokens of a prompt with images that has {len(sent)} here, "
        f"and they differ from token {place} on; accepted: the same tokens; hint: rollout.engine: native"
    )


def _without_lines(ids: list[int], count: int, tokenizer: Tokenizer, *, at_end: bool) -> list[int]:
    """Return the tokens without this many line ends at one end."""
    rest, left = list(ids), count
    while left and rest:
        text = tokenizer.decode(rest[-1:] if at_end else rest[:1])
        if not text or text.strip("\n"):
            break
        rest = rest[:-1] if at_end else rest[1:]
        kept = tokenizer.encode("\n" * max(len(text) - left, 0))
        rest = [*rest, *kept] if at_end else [*kept, *rest]
        left = max(left - len(text), 0)
    return rest


def _files(pixels_MX: np.ndarray, how: PixelFormat | PatchFormat) -> tuple[bytes, ...]:
    """Return each picture as a PNG file."""
    from PIL import Image

    def file(pixels: np.ndarray) -> bytes:
        content = io.BytesIO()
        Image.fromarray(shown(pixels, how)).save(content, "PNG", compress_level=1)
        return content.getvalue()

    return tuple(map(file, pixels_MX))
