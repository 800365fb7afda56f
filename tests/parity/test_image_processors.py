"""Pixels and tokens of images against the processors of `transformers`: pixels to 1e-3, the same ids."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.builders.peers import (
    gemma4_images,
    llama4_image_reference,
    llama4_images,
    llama4_pixels,
    mistral_image_reference,
    mistral_images,
    processor_reference,
    processor_settings,
)
from tests.builders.peers.templates import (
    FAMILIES,
    GEMMA_IMAGE_TOKENS,
    QWEN_IMAGE_TOKENS,
    WITH_TILES,
    chat_with_images,
    chat_with_sized_images,
    chat_with_tiles,
)
from tests.builders.pictures import drawn
from transformers import BatchFeature, Gemma3Processor, Llama4Processor, PreTrainedTokenizerFast, Qwen3VLProcessor
from transformers.image_processing_utils import BaseImageProcessor
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from pttrainer.data.tokenization.chat_template import Chat
from pttrainer.data.tokenization.crops import CropFormat
from pttrainer.data.tokenization.pixels import Colours, PatchFormat, PixelFormat

TOLERANCE = 1e-3
"""Largest difference of a pixel. Not to be loosened."""
SIZES = [(31, 17), (9, 40), (40, 40), (1, 1), (640, 33)]
PARTS = 4


def theirs(format_: PixelFormat) -> Gemma3ImageProcessorPil:
    size = {"height": format_.height, "width": format_.width}
    return Gemma3ImageProcessorPil(size=size, image_mean=format_.colours.mean, image_std=format_.colours.std)


@pytest.mark.parametrize(
    "format_",
    [PixelFormat(28, 28), PixelFormat(35, 21, Colours((0.48, 0.46, 0.41), (0.27, 0.26, 0.28)))],
    ids=["half", "odd"],
)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_pixels_are_equal(size: tuple[int, int], format_: PixelFormat) -> None:
    picture = drawn(*size, seed=sum(size))
    expected_CHW = theirs(format_).preprocess(images=[picture])["pixel_values"][0]
    assert np.abs(format_.array(picture).transpose(2, 0, 1) - expected_CHW).max() <= TOLERANCE


def gemma3_processor(ours: Chat, format_: PixelFormat) -> Gemma3Processor:
    """Theirs, with our tokenizer and template."""
    family = FAMILIES["gemma-3"]
    begin, part, end = GEMMA_IMAGE_TOKENS
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=ours.tokenizer.engine, bos_token=family.bos, eos_token=family.ends[0],
        extra_special_tokens={"boi_token": begin, "image_token": part, "eoi_token": end},
    )  # fmt: skip
    return Gemma3Processor(theirs(format_), tokenizer, chat_template=family.template, image_seq_length=PARTS)


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
    processor = gemma3_processor(ours, PixelFormat(28, 28))
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    images = [drawn(9, 9) for part in parts if part is IMAGE]
    text_ = processor.apply_chat_template(messages, add_generation_prompt=True)
    expected = processor(text=text_, images=images or None, add_special_tokens=False)["input_ids"]
    assert ours.prompt_ids(messages) == expected[0]


CROPPED = [
    (31, 17),
    (17, 31),
    (40, 40),
    (47, 40),
    (48, 40),
    (640, 33),
    (33, 640),
    (19, 90),
    (101, 40),
    (11, 300),
    (7, 9),
]


@pytest.mark.parametrize("least", [1, 10, 20])
@pytest.mark.parametrize("size", CROPPED, ids=str)
def test_crops_of_wide_and_tall_pictures_are_equal(size: tuple[int, int], least: int) -> None:
    """Of a text with two pictures: the crops' pixels, one of which may be narrower, and the words and tokens."""
    how, picture = CropFormat(28, 28, least=least), drawn(*size, seed=sum(size))
    square = drawn(9, 9)
    parts = [{"type": "image", "size": each} for each in (size, square.size)]
    messages = [{"role": "user", "content": [text("Look"), parts[0], text("and"), parts[1]]}]
    ours = chat_with_images(PARTS, how)
    processor = gemma3_processor(ours, how)
    made = processor(
        text=processor.apply_chat_template(messages, add_generation_prompt=True), images=[[picture, square]],
        add_special_tokens=False, do_pan_and_scan=True, pan_and_scan_min_crop_size=least,
    )  # fmt: skip
    assert ours.prompt_ids(messages) == made["input_ids"][0]
    arrays = [each.transpose(2, 0, 1) for shown in (picture, square) for each in how.arrays(shown)]
    assert len(arrays) == len(made["pixel_values"])
    assert max(np.abs(a - b).max() for a, b in zip(arrays, made["pixel_values"], strict=True)) <= TOLERANCE


@pytest.mark.parametrize("size", [(31, 17), (9, 40), (44, 44), (1, 1), (640, 33), (45, 44), (133, 150)], ids=str)
def test_pixels_of_mistral_are_equal(size: tuple[int, int]) -> None:
    picture, P = drawn(*size, seed=sum(size)), mistral_images.PATCH
    theirs, format_ = mistral_image_reference.processor()([picture], return_tensors="np"), mistral_images.FORMAT
    pixels_CHW, (height, width) = theirs["pixel_values"][0], theirs["image_sizes"][0]
    token = P * mistral_images.MERGE
    assert format_.runs(size) == [width // token] * (height // token)
    for row, column, *numbers in format_.array(picture):
        top, left = (int(place - 1) * P for place in (row, column))
        wanted = pixels_CHW[:, top : top + P, left : left + P]
        assert np.abs(wanted.ravel() - numbers).max() <= TOLERANCE


@pytest.mark.parametrize("size", [*SIZES, (3, 590), (2, 590), (640, 2), (91, 90), (60, 42)], ids=str)
@pytest.mark.parametrize("of", [(3, 2, 70), (16, 3, 280), (5, 1, 140)], ids=["small", "released", "patches"])
def test_pixels_of_gemma_4_are_equal(size: tuple[int, int], of: tuple[int, int, int]) -> None:
    P, merge, most = of
    picture, format_ = (
        drawn(*size, seed=sum(size)),
        replace(gemma4_images.FORMAT, patch=P, merge=merge, tokens_most=most),
    )
    theirs = Gemma4ImageProcessorPil(patch_size=P, max_soft_tokens=most, pooling_kernel_size=merge)
    made = theirs([picture], return_tensors="np")
    assert format_.tokens(size) == made["num_soft_tokens_per_image"][0]
    places_N2, pixels_NX = made["image_position_ids"][0], made["pixel_values"][0]
    wanted = {(row, column): x for (column, row), x in zip(places_N2.tolist(), pixels_NX, strict=True) if row >= 0}
    ours_NX = format_.array(picture)
    assert len(ours_NX) == len(wanted)
    for row, column, *numbers in ours_NX:
        theirs_PPC = wanted[int(row) - 1, int(column) - 1].reshape(P, P, 3)
        assert np.abs(theirs_PPC.transpose(2, 0, 1).ravel() - numbers).max() <= TOLERANCE


@pytest.mark.parametrize("name", processor_settings.SETTINGS)
def test_pixels_are_equal_whatever_the_files_say(tmp_path: Path, name: str) -> None:
    expected = processor_reference.made(name, tmp_path)
    assert np.abs(processor_settings.made(name) - expected).max() <= TOLERANCE


PATCHES = [
    PatchFormat(3, 2, 36, 36 * 12),
    PatchFormat(14, 2, 56 * 56, 28 * 28 * 40, Colours((0.48, 0.46, 0.41), (0.27, 0.26, 0.28), resample=3)),
    PatchFormat(5, 3, 9000, 60_000),
]
SIDES = [*SIZES, (3, 590), (91, 90), (14, 15)]


class WithoutVideos(Qwen3VLProcessor):  # type: ignore[misc]  # transformers has no types here
    """Their processor; its part for videos would need torchvision."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        """Let the part for videos be None."""
        return type(argument)


def theirs_of_any_size(format_: PatchFormat) -> Qwen2VLImageProcessorPil:
    return Qwen2VLImageProcessorPil(
        size={"shortest_edge": format_.least, "longest_edge": format_.most}, patch_size=format_.patch,
        merge_size=format_.merge, image_mean=format_.colours.mean, image_std=format_.colours.std,
    )  # fmt: skip


@pytest.mark.parametrize("format_", PATCHES, ids=["small", "clip", "large"])
@pytest.mark.parametrize("size", SIDES, ids=str)
def test_patches_and_their_places_are_equal(size: tuple[int, int], format_: PatchFormat) -> None:
    picture = drawn(*size, seed=sum(size))
    expected = theirs_of_any_size(format_).preprocess(images=[picture])
    ours_NX = format_.array(picture)
    _, rows, columns = expected["image_grid_thw"][0]
    assert ours_NX[:, :2].max(axis=0).tolist() == [rows, columns]
    assert format_.tokens(size) == rows * columns // format_.merge**2
    frames_NCZX = np.asarray(expected["pixel_values"]).reshape(len(ours_NX), 3, 2, -1)
    for frame in range(2):
        assert np.abs(ours_NX[:, 2:].reshape(len(ours_NX), 3, -1) - frames_NCZX[:, :, frame]).max() <= TOLERANCE


@pytest.mark.parametrize(
    "content",
    [[IMAGE, text(" Which breed? ")], [text("First"), IMAGE, text("then"), IMAGE, IMAGE], "No image."],
    ids=["one", "several", "none"],
)
def test_ids_of_images_of_any_size_are_equal(content: Any) -> None:
    format_, sizes = PATCHES[0], iter([(31, 17), (9, 40), (6, 6)])
    pictures = [drawn(*next(sizes)) for part in content if part is IMAGE]
    parts = iter([{**IMAGE, "size": picture.size} for picture in pictures])
    sized = content if isinstance(content, str) else [next(parts) if part is IMAGE else part for part in content]
    ours = chat_with_sized_images(format_)
    begin, part, end, video = QWEN_IMAGE_TOKENS
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=ours.tokenizer.engine, eos_token="<|im_end|>",
        extra_special_tokens={
            "vision_start_token": begin, "image_token": part, "vision_end_token": end, "video_token": video,
        },
    )  # fmt: skip
    template = FAMILIES["qwen-3-vl"].template
    processor = WithoutVideos(theirs_of_any_size(format_), tokenizer, None, chat_template=template)
    text_ = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    expected = processor(text=text_, images=pictures or None, add_special_tokens=False)["input_ids"]
    assert ours.prompt_ids([{"role": "user", "content": sized}]) == list(expected[0])


@pytest.mark.skipif(find_spec("torchvision") is None, reason="their processor needs torchvision")
@pytest.mark.parametrize("name", llama4_pixels.PICTURES)
def test_tiles_of_llama_4_are_equal(name: str) -> None:
    """Without torchvision, unit tests compare with the numbers that `make references` wrote."""
    size, format_ = llama4_pixels.PICTURES[name]
    expected_TSSC, canvas = llama4_image_reference.tiles(name)
    assert format_.canvas(size) == tuple(canvas)
    assert np.abs(llama4_pixels.made(name) - expected_TSSC).max() <= TOLERANCE


class OurTiles(BaseImageProcessor):  # type: ignore[misc]  # transformers has no types here
    """In the place of their processor of pictures, which would need torchvision."""

    model_input_names = ("pixel_values", "aspect_ratios")

    def __call__(self, images: Any, **how: Any) -> BatchFeature:
        """Return our tiles, channels first, and the rows and columns of each picture."""
        del how
        tiles = np.concatenate([llama4_images.FORMAT.array(each) for each in images]).transpose(0, 3, 1, 2)
        return BatchFeature(
            {"pixel_values": tiles, "aspect_ratios": [llama4_images.FORMAT.canvas(x.size) for x in images]}
        )


class WithOurTiles(Llama4Processor):  # type: ignore[misc]  # transformers has no types here
    """Their processor of text with images."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        """Let the part for pictures be ours."""
        return type(argument)


@pytest.mark.parametrize(
    "content",
    [[IMAGE, text(" Which breed? ")], [text("First"), IMAGE, text("then"), IMAGE, IMAGE], "No image."],
    ids=["one", "several", "none"],
)
def test_ids_of_tiles_are_equal(content: Any) -> None:
    sizes = iter([(30, 29), (7, 6), (12, 31)])
    pictures = [drawn(*next(sizes)) for part in content if part is IMAGE]
    parts = iter([{**IMAGE, "size": picture.size} for picture in pictures])
    sized = content if isinstance(content, str) else [next(parts) if part is IMAGE else part for part in content]
    ours = chat_with_tiles(llama4_images.FORMAT)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=ours.tokenizer.engine, bos_token=WITH_TILES.bos, eos_token=WITH_TILES.ends[0]
    )
    processor = WithOurTiles(
        OurTiles(), tokenizer, patch_size=llama4_images.PATCH, pixel_shuffle_ratio=1 / llama4_images.MERGE,
        chat_template=WITH_TILES.template,
    )  # fmt: skip
    text_ = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    expected = processor(text=text_, images=pictures or None, add_special_tokens=False)["input_ids"]
    assert ours.prompt_ids([{"role": "user", "content": sized}]) == list(expected[0])
