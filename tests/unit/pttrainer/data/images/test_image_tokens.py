"""Tokens and pixels of images: Gemma 3's. `make parity` compares them with transformers' processors."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.builders.peers.templates import FAMILIES, chat, chat_with_images
from tests.builders.pictures import drawn

from pttrainer.data.tokenization.image_slots import whole_images
from pttrainer.data.tokenization.pixels import PixelFormat
from pttrainer.errors import DataError

CHAT = chat_with_images(3)
IMAGE = {"type": "image"}
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": [IMAGE, {"type": "text", "text": "Cat?"}]},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": [{"type": "text", "text": "And"}, IMAGE]},
    {"role": "assistant", "content": "No."},
]


def test_each_image_is_its_tokens_and_none_of_them_is_learned() -> None:
    tokens = CHAT.tokens(TURNS)
    text = CHAT.tokenizer.decode(tokens.ids, skip_special=False)
    image = f"\n\n<start_of_image>{'<image_soft_token>' * 3}<end_of_image>\n\n"
    turn = "<start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n{}<end_of_turn>\n"
    assert text == "<bos>" + turn.format(f"{image}Cat?", "Yes.") + turn.format(f"And{image}", "No.")
    learned = [token for token, is_learned in zip(tokens.ids, tokens.assistant_mask, strict=True) if is_learned]
    assert CHAT.tokenizer.decode(learned, skip_special=False) == "Yes.<end_of_turn>No.<end_of_turn>"


@pytest.mark.parametrize("text", ["a <start_of_image>", "a <image_soft_token>"])
def test_a_text_that_looks_like_an_image_is_refused(text: str) -> None:
    with pytest.raises(DataError, match=r"<\w+>'.* image"):
        CHAT.prompt_ids([{"role": "user", "content": text}])
    with pytest.raises(DataError, match=r"<\w+>'.* image"):
        CHAT.text_tokens(text)


def test_a_template_that_leaves_images_out_is_refused() -> None:
    images = [{"role": "user", "content": "Cat?"}, {"role": "assistant", "content": [IMAGE]}]
    with pytest.raises(DataError, match="has images, and the model takes none"):
        chat(FAMILIES["gemma-3"]).tokens(images)
    silent = replace(CHAT, source="{{ messages[0].content }}")
    with pytest.raises(DataError, match="writes 0 times '<start_of_image>' for 1 images; accepted: once for each"):
        silent.prompt_ids(images)


def test_an_example_is_cut_before_an_image_and_not_inside_it() -> None:
    """Inputs are all tokens but the last one: with an image's last part there, the image is not whole."""
    part = CHAT.tokenizer.engine.token_to_id("<image_soft_token>")
    ids = [1, 2, part, part, part, 3, 4, part, part, part, 5]
    kept = {length: whole_images(ids[:length], part, [3, 3]) for length in range(1, len(ids) + 1)}
    assert kept[2] == (2, 0)
    assert kept[3] == (3, 0), "the image's first part is predicted and no input"
    assert [kept[length] for length in (4, 5)] == [(2, 0)] * 2
    assert [kept[length] for length in (6, 7, 8)] == [(6, 1), (7, 1), (8, 1)]
    assert [kept[length] for length in (9, 10, 11)] == [(7, 1), (7, 1), (11, 2)]


def test_pixels_are_resized_as_pillow_does_and_normalised() -> None:
    picture = drawn(31, 17)
    resized = np.asarray(picture.resize((21, 14), Image.Resampling.BILINEAR), np.float32)
    np.testing.assert_allclose(PixelFormat(14, 21).array(picture), resized / 127.5 - 1, atol=1e-6)
