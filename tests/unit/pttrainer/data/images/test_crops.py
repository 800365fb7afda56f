"""Wide and tall pictures in crops (`spec.model.panAndScan`). `make parity` compares them with transformers'."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.builders.peers.templates import chat_with_images
from tests.builders.pictures import drawn, encoded

from pttrainer.data.sources.images.decoding import CheckedImage, checked
from pttrainer.data.sources.images.references import Origin, reference
from pttrainer.data.tokenization import row_images
from pttrainer.data.tokenization.chat_template import Chat
from pttrainer.data.tokenization.crops import CropFormat
from pttrainer.data.tokenization.pixels import PixelFormat
from pttrainer.errors import ConfigError
from pttrainer.models.config import Gemma4Vision
from pttrainer.models.loading import image_inputs

PARTS = 3
HOW = CropFormat(14, 14, least=10)


@pytest.mark.parametrize(
    ("size", "boxes"),
    [
        ((40, 40), []),
        ((47, 40), []),
        ((48, 40), [(0, 0, 24, 40), (24, 0, 48, 40)]),
        ((40, 101), [(0, 0, 40, 34), (0, 34, 40, 68), (0, 68, 40, 101)]),
        ((30, 9), []),
        ((500, 12), [(0, 0, 125, 12), (125, 0, 250, 12), (250, 0, 375, 12), (375, 0, 500, 12)]),
        ((18, 15), []),
    ],
    ids=str,
)
def test_crops_lie_along_the_longer_side(size: tuple[int, int], boxes: list[tuple[int, ...]]) -> None:
    """None of a picture that is nearly square, or whose crops would be too small."""
    assert HOW.boxes(size) == boxes


def test_a_released_model_crops_as_transformers_does_if_it_is_told_to() -> None:
    assert (CropFormat(896, 896).least, CropFormat(896, 896).most, CropFormat(896, 896).ratio) == (256, 4, 1.2)


def pictures(directory: Path, **sizes: tuple[int, int]) -> dict[str, CheckedImage]:
    """Checked files of drawn pictures."""
    origin, taken = Origin(f"file://{directory}/rows.jsonl"), {}
    for name, size in sizes.items():
        (directory / f"{name}.png").write_bytes(encoded(drawn(*size, seed=len(taken))))
        [taken[name]] = checked([reference(f"{name}.png", name, origin)])
    return taken


def question(*images: CheckedImage) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "image", "size": each.size} for each in images]}]


def test_crops_are_in_rows_as_pictures_of_their_own(tmp_path: Path) -> None:
    """A row of a tall picture and a square one is that of four pictures, but for the words between them."""
    given = pictures(tmp_path, tall=(12, 31), square=(20, 20))
    tall, square = given["tall"], given["square"]
    with_crops = chat_with_images(PARTS, HOW)
    ids = np.array(with_crops.prompt_ids(question(tall, square)))
    text = with_crops.tokenizer.decode(ids.tolist(), skip_special=False)
    one = f"\n\n<start_of_image>{'<image_soft_token>' * PARTS}<end_of_image>\n\n"
    crops = " ".join([one] * 3)
    assert f"Here is the original image {one} and here are some crops to help you see better {crops}{one}" in text

    of_rows = row_images.of_chat(_with_pixels(with_crops, HOW), [[tall, square], [square]])
    assert of_rows is not None
    made = of_rows.arrays([(ids, [tall, square])], len(ids))
    slots_T = made[row_images.SLOTS]
    assert slots_T[slots_T > 0].tolist() == list(range(1, 5 * PARTS + 1))
    whole = drawn(12, 31)
    shown = [whole, *(whole.crop(box) for box in HOW.boxes(whole.size)), drawn(20, 20, seed=1)]
    np.testing.assert_array_equal(made[row_images.PIXELS], [PixelFormat(14, 14).array(each) for each in shown])


def test_examples_of_a_row_and_prompts_know_their_own_crops(tmp_path: Path) -> None:
    given = pictures(tmp_path, wide=(31, 12), square=(20, 20))
    chat = _with_pixels(chat_with_images(PARTS, HOW), HOW)
    examples = [(np.array(chat.prompt_ids(question(each))), [each]) for each in given.values()]
    of_rows = row_images.of_chat(chat, [list(given.values())])
    assert of_rows is not None
    slots_T = of_rows.arrays(examples, sum(len(ids) for ids, _ in examples))[row_images.SLOTS]
    assert slots_T[slots_T > 0].tolist() == list(range(1, 5 * PARTS + 1))
    wide, square = row_images.of_prompts(chat, examples)
    assert wide is not None
    assert square is not None
    assert (wide.pixels_BMSSC.shape[1], square.pixels_BMSSC.shape[1]) == (4, 1)
    moved = row_images.moved(chat, [7, *examples[0][0].tolist()], wide)
    assert moved is not None
    np.testing.assert_array_equal(moved.slots_BT[0], [0, *wide.slots_BT[0]])


def test_pictures_that_keep_their_sides_have_no_crops() -> None:
    with pytest.raises(ConfigError, match=r"spec\.model\.panAndScan: true: m: accepted: false, or true with Gemma 3"):
        image_inputs.pixel_format(Gemma4Vision.__new__(Gemma4Vision), {}, "m", pan_and_scan=True)


def _with_pixels(chat: Chat, how: CropFormat) -> Chat:
    return replace(chat, pixels=how)
