"""Llama 4 with images, beyond its numbers: tiles and their tokens, frozen parts, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.builders.peers.llama4_images import (
    CASES,
    COLUMN_END,
    FORMAT,
    MARK,
    MODELS,
    PART,
    PREPROCESSOR,
    PROCESSOR,
    TOWER,
    write_trainable,
)
from tests.builders.peers.llama4_pixels import PICTURES, made
from tests.builders.peers.sized_images import generated
from tests.builders.peers.templates import WITH_TILES, chat, chat_with_tiles
from tests.builders.pictures import drawn, encoded
from tests.builders.vllm.context import context

from ptapi.failures import ExitCode
from ptapi.spec import Training, Vllm
from pttrainer.data.tokenization.image_slots import runs_of, slots
from pttrainer.data.tokenization.image_tokens import expanded
from pttrainer.errors import ConfigError, DataError
from pttrainer.models import Model, ModelStructure, from_hf
from pttrainer.models.config import Llama4Vision
from pttrainer.models.loading import image_inputs
from pttrainer.rollout.vllm.vllm_engine import vllm_engine
from pttrainer.train_step.optimizer import freeze_patterns

REFERENCE = Path(__file__).with_name("llama-4-tiles.npz")


@pytest.mark.parametrize("name", PICTURES)
def test_tiles_are_those_of_transformers(name: str) -> None:
    size, format_ = PICTURES[name]
    expected = np.load(REFERENCE)
    assert format_.canvas(size) == tuple(expected[f"{name}-canvas"])
    np.testing.assert_array_equal(made(name), expected[name].astype(np.float32))


def test_a_mark_becomes_tiles_with_what_stands_between_them_and_the_whole_picture() -> None:
    images = chat_with_tiles(replace(FORMAT, tokens_each=2)).images
    assert images is not None
    sizes = [(30, 29), (7, 6), (12, 31), (90, 13)]
    parts = [{"type": "image", "size": size} for size in sizes]
    tile = "<|patch|>" * 2
    next_column, next_row = "<|tile_x_separator|>", "<|tile_y_separator|>"
    cuts = [
        f"{tile}{next_column}{tile}{next_row}{tile}{next_column}{tile}{next_row}",
        "",
        f"{tile}{next_row}{tile}{next_row}",
        f"{tile}{next_column}{tile}{next_column}{tile}{next_column}{tile}{next_row}",
    ]
    wanted = [f"<|image_start|>{cut}<|image|>{tile}<|image_end|>" for cut in cuts]
    assert expanded("?".join(["<|image|>"] * 4), [{"role": "user", "content": parts}], images) == "?".join(wanted)
    assert [images.count(size) for size in sizes] == [10, 2, 6, 10]


def test_slots_go_on_from_tile_to_tile() -> None:
    pictures = [drawn(23, 9), drawn(7, 6)]
    ids = np.array([5, *(token for each in pictures for token in MODELS.picture_tokens(each)), 7])
    runs = [FORMAT.runs(each.size) for each in pictures]
    own_T = slots(ids, PART, runs, 1000, "here")
    assert own_T[own_T > 0].tolist() == [*range(1, 28), *range(1001, 1010)]
    assert runs_of(own_T, 1000) == runs == [[9, 9, 9], [9]]
    with pytest.raises(
        DataError, match="runs of 9, 9, 9, 9 tokens of id 100; accepted: runs of lines or tiles for its"
    ):
        slots(ids, PART, [[9, 9], [9]], 1000, "here")


def test_a_job_trains_the_parts_of_the_tower_that_it_says() -> None:
    config = from_hf(CASES["llama-4"], images=True)
    of_vision = {path for path in ModelStructure(config).weights if path[0] == "vision"}
    frozen = {
        vision: freeze_patterns.fully_frozen(freeze_patterns.patterns_of(Training(vision=vision), config), config)
        for vision in ("frozen", "projector", "all")
    }
    projector = {("vision", name) for name in ("merge", "inner", "projection")}
    assert frozen == {"frozen": of_vision, "projector": of_vision - projector, "all": frozenset()}


def test_an_empty_list_of_layers_without_rotary_embedding_says_nothing_as_in_released_files() -> None:
    text = CASES["llama-4"]["text_config"]
    assert from_hf(text | {"no_rope_layers": []}) == from_hf(text)


def test_llama_4_scout_has_as_many_weights_as_its_released_files() -> None:
    text = {"model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192, "num_hidden_layers": 48}
    tower = TOWER | {
        "hidden_size": 1408, "intermediate_size": 5632, "num_hidden_layers": 34, "num_attention_heads": 16,
        "image_size": 336, "patch_size": 14, "projector_input_dim": 4096, "projector_output_dim": 4096,
        "vision_output_dim": 4096, "rope_theta": 10_000, "vision_feature_select_strategy": "default",
    }  # fmt: skip
    config = from_hf({"model_type": "llama4", "text_config": text, "vision_config": tower}, images=True)
    assert sum(spec.size for spec in ModelStructure(config).weights.values()) == 108_641_793_536
    assert isinstance(config.vision, Llama4Vision)
    assert (config.vision.tile_tokens, config.vision.begin_id, config.vision.end_id) == (144, 200_080, 200_081)
    assert config.vision.pixels_shape(8192) == (17, 336, 336, 3)
    assert config.vision.pixels_shape(1024) == (7, 336, 336, 3)


def test_images_that_do_not_fit_their_tokens_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = MODELS.write_checkpoint(tmp_path / "model", CASES["llama-4"])
    (tmp_path / "a.png").write_bytes(encoded(drawn(23, 9)))
    row = [5, *[PART] * 9, COLUMN_END, *[PART] * 9, MARK]
    assert generated(directory, [row], [["a.png"]]) == ExitCode.DATA_ERROR
    answer = "runs of 9, 9 tokens of id 100; accepted: runs of lines or tiles for its 1 images: 3 of 9"
    assert answer in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "change", "answer"),
    [
        ("processor_config.json", {"patch_size": 4}, "processor_config.json patch_size: 4: not supported; accepted: 3"),
        ("processor_config.json", {"tile_token": "<|x|>"}, "tile_token: '<|x|>': not supported; accepted: <|tile_x_"),
        ("preprocessor_config.json", {"size": {"height": 9, "width": 18}},
         "preprocessor_config.json size height: 9: not supported; accepted: 18"),
        ("preprocessor_config.json", {"max_patches": 257}, "max_patches: 257: not supported; accepted: a whole number"),
        ("preprocessor_config.json", {"resample": 3}, "resample: 3: not supported; accepted: 2"),
        ("preprocessor_config.json", {"do_normalize": False}, "do_normalize: False: not supported; accepted: True"),
    ],
)  # fmt: skip
def test_preprocessing_that_is_not_computed_is_refused(file: str, change: dict[str, Any], answer: str) -> None:
    config = from_hf(CASES["llama-4"], images=True)
    whole = {"processor_config.json": PROCESSOR, "preprocessor_config.json": PREPROCESSOR}
    files = {name: json.dumps(content | (change if name == file else {})).encode() for name, content in whole.items()}
    assert config.vision is not None
    with pytest.raises(ConfigError) as raised:
        image_inputs.pixel_format(config.vision, files, "a model")
    assert answer in str(raised.value)


def test_a_tokenizer_with_other_tokens_is_refused(tmp_path: Path) -> None:
    config = from_hf(json.loads((write_trainable(tmp_path) / "config.json").read_text()), images=True)
    own, other = chat_with_tiles(FORMAT).tokenizer, chat(WITH_TILES).tokenizer
    assert image_inputs.tokens(config, own, FORMAT, "a model") == chat_with_tiles(FORMAT).images
    with pytest.raises(ConfigError, match=r"a model: the tokenizer has .*; accepted: the tokenizer of the model, with"):
        image_inputs.tokens(replace(config, image_token_id=3), other, FORMAT, "a model")


def test_tiles_are_not_sent_to_vllm(tmp_path: Path) -> None:
    of_job, _ = context(tmp_path, Model(from_hf(CASES["llama-4"], images=True)), chat=chat_with_tiles(FORMAT))
    with pytest.raises(ConfigError, match=r"vllm: cannot be sent pictures cut into tiles \(Llama 4\).*: native"):
        vllm_engine(of_job, Vllm())


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"model_type": "siglip"}, "model_type: 'siglip': not supported; accepted: llama4_vision_model"),
        ({"num_attention_heads": 4}, "vision_config num_attention_heads: 4: accepted: a divisor of a quarter of"),
        ({"image_size": 21}, "vision_config image_size: 21: accepted: a multiple of the 6 pixels of a token's side"),
        ({"pixel_shuffle_ratio": 0.4}, "pixel_shuffle_ratio: 0.4: not supported; accepted: 1 divided by a whole"),
        (
            {"intermediate_size": 100},
            "intermediate_size: 100: not supported; accepted: 144, the numbers of a token's 4",
        ),
        ({"vision_output_dim": 30}, "vision_output_dim: 30: not supported; accepted: 31"),
        ({"projector_dropout": 0.1}, "projector_dropout: 0.1: not supported; accepted: 0.0"),
        ({"window_size": 3}, "vision_config window_size: 3: not supported; accepted: unset"),
    ],
)
def test_a_tower_that_is_not_computed_is_refused(change: dict[str, Any], answer: str) -> None:
    with pytest.raises(ConfigError, match=answer):
        from_hf(CASES["llama-4"] | {"vision_config": TOWER | change}, images=True)
