"""Files that say other things of a picture's pixels than released models do: as transformers has it, or refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.builders.peers.processor_settings import (
    GEMMA3,
    GEMMA4,
    MISTRAL,
    NEW,
    OLD,
    PATCHES,
    PICTURE,
    QWEN,
    SETTINGS,
    SIDES,
    SQUARE,
    Settings,
    made,
    pixel_format,
)

from pttrainer.data.tokenization.shown_pixels import shown
from pttrainer.errors import ConfigError

REFERENCES = Path(__file__).with_name("processors.npz")
TOLERANCE = 1e-3
"""Largest difference of a pixel. Not to be loosened."""


@pytest.mark.parametrize("name", SETTINGS)
def test_pixels_are_those_of_transformers(name: str) -> None:
    with np.load(REFERENCES) as theirs:
        assert np.abs(made(name) - theirs[name]).max() <= TOLERANCE


@pytest.mark.parametrize("name", SETTINGS)
def test_the_way_back_from_pixels_leads_to_the_resized_picture(name: str) -> None:
    format_: Any = pixel_format(SETTINGS[name])
    size = (format_.width, format_.height) if name.startswith("gemma3") else format_.resized(PICTURE.size)
    resized = PICTURE.resize(size, resample=format_.colours.resample)
    assert np.array_equal(shown(made(name), format_), np.asarray(resized))


@pytest.mark.parametrize(
    ("vision", "files", "answer"),
    [
        (GEMMA3, {OLD: SQUARE | {"do_resize": None}}, f"{OLD} do_resize: None: not supported; accepted: True"),
        (GEMMA3, {OLD: SQUARE | {"resample": None}}, "resample: None: not supported; accepted: 0, 1, 2, 3, 4, 5"),
        (GEMMA3, {OLD: SQUARE | {"image_std": 0}}, "image_std: 0: not supported; accepted: three numbers, for red, "),
        (GEMMA3, {OLD: SQUARE | {"image_mean": [0.5]}}, "image_mean: [0.5]: not supported; accepted: three numbers, "),
        (GEMMA3, {OLD: SQUARE | {"rescale_factor": 0}}, "rescale_factor: 0: not supported; accepted: a number other"),
        (GEMMA3, {OLD: SQUARE | {"do_rescale": 1}}, "do_rescale: 1: not supported; accepted: true or false"),
        (GEMMA3, {OLD: SQUARE | {"size": None}}, "size height: None: not supported; accepted: 12"),
        (GEMMA3, {OLD: SQUARE, NEW: {"image_seq_length": 256}}, f"{NEW} image_seq_length: 256: not supported; accep"),
        (GEMMA3, {OLD: SQUARE, NEW: {"image_processor": SQUARE | {"crop": 3}}}, f"{NEW} crop: 3: not supported"),
        (GEMMA3, {NEW: {"image_seq_length": 1}}, f"no {OLD}; accepted: a model with images has it"),
        (GEMMA4, {OLD: {"max_soft_tokens": 70}}, "patch_size: None: not supported; accepted: 2"),
        (MISTRAL, {OLD: SIDES | {"size": {"shortest_edge": 9}}}, "size shortest_edge: 9: not supported"),
        (QWEN, {OLD: PATCHES | {"size": {"min_pixels": 36, "max_pixels": 72}}}, "size max_pixels: 72: not supported"),
        (QWEN, {OLD: {key: x for key, x in PATCHES.items() if key != "patch_size"}}, "patch_size: None: not supported"),
        (QWEN, {OLD: PATCHES | {"min_pixels": 36 * 40_000}}, "accepted: a longest_edge of at most 65,536 tokens, a "),
    ],
)  # fmt: skip
def test_what_would_be_computed_otherwise_is_refused(vision: Any, files: dict[str, Any], answer: str) -> None:
    with pytest.raises(ConfigError) as raised:
        pixel_format(Settings(vision, json.loads(json.dumps(files))))
    assert answer in str(raised.value)
    assert str(raised.value).startswith("a model: ")
