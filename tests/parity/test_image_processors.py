"""Pixels and tokens of images against the processors of `transformers`: pixels to 1e-3, the same ids."""

from typing import Any

import numpy as np
import pytest
from tests.builders.peers.templates import FAMILIES, GEMMA_IMAGE_TOKENS, chat_with_images
from tests.builders.pictures import drawn
from transformers import Gemma3Processor, PreTrainedTokenizerFast
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from pttrainer.data.tokenization.pixels import PixelFormat

TOLERANCE = 1e-3
"""Largest difference of a pixel. Not to be loosened."""
SIZES = [(31, 17), (9, 40), (40, 40), (1, 1), (640, 33)]
PARTS = 4


def theirs(format_: PixelFormat) -> Gemma3ImageProcessorPil:
    size = {"height": format_.height, "width": format_.width}
    return Gemma3ImageProcessorPil(size=size, image_mean=format_.mean, image_std=format_.std)


@pytest.mark.parametrize(
    "format_", [PixelFormat(28, 28), PixelFormat(35, 21, (0.48, 0.46, 0.41), (0.27, 0.26, 0.28))], ids=["half", "odd"]
)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_pixels_are_equal(size: tuple[int, int], format_: PixelFormat) -> None:
    picture = drawn(*size, seed=sum(size))
    expected_CHW = theirs(format_).preprocess(images=[picture])["pixel_values"][0]
    ours_HWC = format_.normalised(format_.resized(picture))
    assert np.abs(ours_HWC.transpose(2, 0, 1) - expected_CHW).max() <= TOLERANCE


IMAGE: dict[str, Any] = {"type": "image"}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": [IMAGE, text(" Which breed? ")]}],
        [{"role": "user", "content": [text("First"), IMAGE, text("then"), IMAGE, IMAGE]},
         {"role": "assistant", "content": "Two <cats>.\n"}, {"role": "user", "content": [text("And?"), IMAGE]}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [IMAGE]}],
        [{"role": "user", "content": "No image."}],
    ],
    ids=["one", "several", "system", "none"],
)  # fmt: skip
def test_ids_are_equal(messages: list[dict[str, Any]]) -> None:
    ours = chat_with_images(PARTS)
    family = FAMILIES["gemma-3"]
    begin, part, end = GEMMA_IMAGE_TOKENS
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=ours.tokenizer.engine, bos_token=family.bos, eos_token=family.ends[0],
        extra_special_tokens={"boi_token": begin, "image_token": part, "eoi_token": end},
    )  # fmt: skip
    processor = Gemma3Processor(
        theirs(PixelFormat(28, 28)), tokenizer, chat_template=family.template, image_seq_length=PARTS
    )
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    images = [drawn(9, 9) for part in parts if part is IMAGE]
    text_ = processor.apply_chat_template(messages, add_generation_prompt=True)
    expected = processor(text=text_, images=images or None, add_special_tokens=False)["input_ids"]
    assert ours.prompt_ids(messages) == expected[0]
