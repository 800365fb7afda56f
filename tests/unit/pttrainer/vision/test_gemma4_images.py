"""Gemma 4 with images, beyond its numbers: tokens, sizes, frozen parts, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.builders.peers.gemma4_images import (
    AUDIO,
    BEGIN,
    CASES,
    END,
    FORMAT,
    MODELS,
    PART,
    PREPROCESSOR,
    TOWER,
    VIDEO,
)
from tests.builders.peers.image_models import load_model
from tests.builders.peers.sized_images import generated
from tests.builders.pictures import drawn, encoded

from ptapi.failures import ExitCode
from ptapi.spec import Training
from pttrainer.batch import Images
from pttrainer.data.tokenization.image_tokens import expanded, gemma4
from pttrainer.errors import ConfigError
from pttrainer.models import ModelStructure, from_hf
from pttrainer.train_step.optimizer import freeze_patterns

BUFFERS = {"gemma-4": {"std_bias", "std_scale"}, "gemma-4-small": {"input", "output"}, "gemma-4-moe": set()}
"""Parts of the names of numbers that transformers stores and does not train."""


def test_a_mark_becomes_as_many_tokens_as_a_pictures_proportions_make() -> None:
    tokens = gemma4(("<|image>", "<|image|>", "<image|>"), (BEGIN, PART, END), 1000, FORMAT)
    sizes = [(13, 7), (640, 2), (2, 640), (50, 50)]
    parts = [{"type": "image", "size": size} for size in sizes]
    runs = "?".join(f"<|image>{'<|image|>' * FORMAT.tokens(size)}<image|>" for size in sizes)
    assert expanded("?".join(["<|image|>"] * 4), [{"role": "user", "content": parts}], tokens) == runs
    assert [FORMAT.tokens(size) for size in sizes] == [66, 70, 70, 64]
    assert [FORMAT.resized(size) for size in sizes] == [(66, 36), (420, 6), (6, 420), (48, 48)]


def test_patches_padded_to_a_power_of_two_are_of_whole_tokens(tmp_path: Path) -> None:
    """As the sampler pads them; released towers join 9 patches to a token."""
    three = replace(MODELS, format=replace(FORMAT, merge=3, tokens_most=10))
    tower = TOWER | {"pooling_kernel_size": 3, "position_embedding_size": 100, "num_hidden_layers": 1}
    raw = CASES["gemma-4"] | {"vision_config": tower}
    model, params = load_model(three.write_checkpoint(tmp_path, raw))
    picture = drawn(20, 31)
    tokens_BT = np.array([[7, BEGIN, *[PART] * three.format.tokens(picture.size), END, 9]])
    images = three.images_of(tokens_BT, [[picture]])
    patches = images.pixels_BMSSC.shape[2]
    assert 32 < patches < 64
    pixels = np.pad(images.pixels_BMSSC, ((0, 0), (0, 0), (0, 64 - patches), (0, 0)))
    rows = tokens_BT, np.arange(tokens_BT.size)[None], np.ones_like(tokens_BT)
    alone, padded = (model.forward(params, *rows, images=Images(each, images.slots_BT)) for each in (images[0], pixels))
    np.testing.assert_allclose(padded, alone, atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_a_job_trains_the_parts_of_the_tower_that_it_says(case: str) -> None:
    config = from_hf(CASES[case], images=True)
    of_vision = {path for path in ModelStructure(config).weights if path[0] == "vision"}
    stored = {path for path in of_vision if BUFFERS[case] & {path[-1], path[-1].split("_")[-2:][0]}}
    frozen = {}
    for vision in ("frozen", "projector", "all"):
        patterns = freeze_patterns.patterns_of(Training(vision=vision), config)
        frozen[vision] = freeze_patterns.fully_frozen(patterns, config) & of_vision
    assert bool(stored) == bool(BUFFERS[case])
    assert frozen == {"frozen": of_vision, "projector": of_vision - {("vision", "projection")}, "all": stored}


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ([5, PART, PART], "row 0: runs of 2 tokens of id 100; accepted: a run of 66 for each of its 1 images"),
        ([5, AUDIO], f"--tokens: id {AUDIO}: stands for audio (audio_token_id of config.json), which is not supported"),
        ([5, VIDEO], f"--tokens: id {VIDEO}: stands for video (video_token_id of config.json), which is not supported"),
    ],
)
def test_tokens_that_do_not_fit_an_image_and_those_of_sound_and_videos_are_refused(
    tmp_path: Path, row: list[int], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = MODELS.write_checkpoint(tmp_path / "model", CASES["gemma-4"])
    (tmp_path / "a.png").write_bytes(encoded(drawn(13, 7)))
    assert generated(directory, [row], [["a.png"]]) == ExitCode.DATA_ERROR
    assert answer in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"max_soft_tokens": 256}, "max_soft_tokens: 256: not supported; accepted: 70, 140, 280, 560, 1120"),
        ({"max_soft_tokens": 140}, "accepted: tokens whose patches have positions, of which there are 150"),
        ({"image_std": [1.0, 0.0, 1.0]}, "image_std: [1.0, 0.0, 1.0]: not supported; accepted: three numbers, for red"),
        ({"pooling_kernel_size": 3}, "pooling_kernel_size: 3: not supported; accepted: 2"),
        ({"resample": 6}, "resample: 6: not supported; accepted: 0, 1, 2, 3, 4, 5"),
    ],
)
def test_preprocessing_that_is_not_computed_is_refused(
    tmp_path: Path, change: dict[str, Any], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = MODELS.write_checkpoint(tmp_path / "model", CASES["gemma-4"])
    (directory / "processor_config.json").write_text(json.dumps({"image_processor": PREPROCESSOR | change}))
    assert generated(directory, [[5, 6]], [[]]) == ExitCode.CONFIG_ERROR
    assert f"processor_config.json {answer}" in capsys.readouterr().err.replace(
        "processor_config.json max_soft_tokens: 140: not supported; ", "processor_config.json "
    )


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"model_type": "siglip"}, "model_type: 'siglip': not supported; accepted: gemma4_vision"),
        ({"head_dim": 6}, "vision_config head_dim: 6: accepted: a multiple of 4, because"),
        ({"num_key_value_heads": 4}, r"num_attention_heads: 6: accepted: a multiple of num_key_value_heads \(4\)"),
        ({"attention_bias": True}, "attention_bias: True: not supported; accepted: False"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_type: 'linear': not supported; accepted: axial"),
        ({"window_size": 3}, "vision_config window_size: 3: not supported; accepted: unset"),
    ],
)
def test_a_tower_that_is_not_computed_is_refused(change: dict[str, Any], answer: str) -> None:
    with pytest.raises(ConfigError, match=answer):
        from_hf(CASES["gemma-4"] | {"vision_config": TOWER | change}, images=True)
