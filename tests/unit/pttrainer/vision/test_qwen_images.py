"""Qwen3-VL and Qwen 3.5 with images of any size, beyond their numbers: gradients, tokens, and what is refused."""

import json
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.builders.peers.image_models import load_model
from tests.builders.peers.qwen_images import (
    CASES,
    FORMAT,
    MODELS,
    PREPROCESSOR,
    RAW,
    TOWER,
    VIDEO,
)
from tests.builders.peers.sized_images import generated
from tests.builders.peers.templates import chat_with_sized_images
from tests.builders.pictures import drawn, encoded

from ptapi.failures import ExitCode
from ptapi.spec import Training
from pttrainer.data.tokenization.image_slots import whole_images
from pttrainer.errors import ConfigError, DataError
from pttrainer.models import Model, ModelStructure, Params, from_hf
from pttrainer.models.attention import rope
from pttrainer.models.config import Rope
from pttrainer.train_step.optimizer import freeze_patterns


@lru_cache
def model(case: str) -> tuple[Model, Params]:
    with TemporaryDirectory() as directory:
        return load_model(MODELS.write_checkpoint(Path(directory), CASES[case]))


def test_gradients_reach_the_tower_and_none_comes_from_padding() -> None:
    of, params = model("qwen-3-vl")
    tokens, pictures = MODELS.examples[0]
    rows = (tokens[None], np.arange(len(tokens))[None], np.ones((1, len(tokens)), np.int32))
    images = MODELS.images_of(tokens[None], [pictures])
    padded = np.pad(images.pixels_BMSSC, ((0, 0), (0, 1), (0, 12), (0, 0)))

    def loss(params: Params, pixels: Any) -> jax.Array:
        return jnp.sum(of.forward(params, *rows, images=images._replace(pixels_BMSSC=pixels)) ** 2)

    plain, wider = (jax.jit(jax.grad(loss))(params, pixels)["vision"] for pixels in (images.pixels_BMSSC, padded))
    for gradient, same in zip(jax.tree.leaves(plain), jax.tree.leaves(wider), strict=True):
        scale = np.abs(gradient).max()
        assert scale > 0 or np.abs(same).max() == 0
        np.testing.assert_allclose(same, gradient, atol=1e-4 * max(float(scale), 1e-3))
    assert all(np.abs(plain[part]["down"]).max() > 0 for part in ("merger", "deep_0", "deep_1"))


@pytest.mark.parametrize(
    ("trained", "frozen"), [("frozen", {"tower", "merger"}), ("projector", {"tower"}), ("all", set())]
)
def test_a_job_trains_the_parts_of_the_tower_that_it_says(trained: Any, frozen: set[str]) -> None:
    config = from_hf(RAW, images=True)
    training = Training.model_validate({"steps": 1, "vision": trained})
    patterns = freeze_patterns.patterns_of(training, config)
    paths = freeze_patterns.fully_frozen(patterns, config) if patterns else frozenset()
    parts = {"merger" if path[1].startswith(("merger", "deep")) else "tower" for path in paths if path[0] == "vision"}
    assert parts == frozen
    assert all(path[0] == "vision" for path in paths)


def test_qwen_3_vl_8b_has_as_many_weights_as_its_released_files() -> None:
    text = {
        "model_type": "qwen3_vl_text", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936,
    }  # fmt: skip
    raw = {"model_type": "qwen3_vl", "text_config": text, "vision_config": {"out_hidden_size": 4096}}
    config = from_hf(raw, images=True)
    assert sum(spec.size for spec in ModelStructure(config).weights.values()) == 8_767_123_696


@pytest.mark.parametrize(
    ("row", "size", "answer"),
    [
        ([5, 100, 100], (23, 9), "row 0: runs of 2 tokens of id 100; accepted: a run of 8 for each of its 1 images"),
        ([5, VIDEO], (6, 6), f"--tokens: id {VIDEO}: stands for video (video_token_id of config.json), which is not"),
        ([5, 100], (1, 201), "an image of 1 x 201 pixels; accepted: a side at most 200 times the other"),
    ],
)
def test_tokens_that_do_not_fit_an_images_size_and_videos_are_refused(
    tmp_path: Path, row: list[int], size: tuple[int, int], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = MODELS.write_checkpoint(tmp_path / "model", RAW)
    (tmp_path / "a.png").write_bytes(encoded(drawn(*size)))
    assert generated(directory, [row], [["a.png"]]) == ExitCode.DATA_ERROR
    assert answer in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sections", "axes"), [((24, 20, 20), [0, 1, 2, 0, 1]), ((1, 1, 1), [0, 1, 2, 0, 0]), ((0, 2, 0), [0, 1, 0, 0, 1])]
)
def test_pairs_take_turns_whatever_the_sections_sum_to(sections: rope.Sections, axes: list[int]) -> None:
    """As in transformers: a small model has the large ones' sections if its config names none."""
    positions = np.random.default_rng(0).integers(0, 9, (3, 1, 4))
    [cos, sin] = rope.rotation(Rope(1e4), 10, jnp.asarray(positions), sections)
    of_pairs = positions[axes].transpose(1, 2, 0) * rope.frequencies(Rope(1e4), 10)
    np.testing.assert_allclose(cos, np.cos(of_pairs), atol=1e-6)
    np.testing.assert_allclose(sin, np.sin(of_pairs), atol=1e-6)


NO_DEEP = {**TOWER, "deepstack_visual_indexes": []}


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"vision_config": {**TOWER, "out_hidden_size": 41}}, "vision_config out_hidden_size: 41: not supported; acc"),
        ({"vision_config": {**TOWER, "num_heads": 5}}, "vision_config num_heads: 5: accepted: a divisor of a quarter"),
        ({"vision_config": {**TOWER, "num_position_embeddings": 26}}, "num_position_embeddings: 26: not supported; "),
        ({"vision_config": {**TOWER, "deepstack_visual_indexes": [2, 4]}}, "[2, 4]: accepted: ascending numbers of"),
        (
            {"vision_config": {**NO_DEEP, "window_size": 3}},
            "vision_config window_size: 3: not supported; accepted: u",
        ),
        (
            {"model_type": "qwen3_vl_moe", "text_config": {**RAW["text_config"], "norm_topk_prob": False}},
            "text_config norm_topk_prob: False: not supported; accepted: True",
        ),
    ],
)
def test_towers_that_are_not_computed_are_refused(change: dict[str, Any], answer: str) -> None:
    with pytest.raises(ConfigError) as refused:
        from_hf(RAW | change, images=True)
    assert answer in str(refused.value)


def test_preprocessing_for_another_tower_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = MODELS.write_checkpoint(tmp_path / "model", RAW)
    (directory / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR | {"merge_size": 1}))
    assert generated(directory, [[5, 6]], [[]]) == ExitCode.CONFIG_ERROR
    assert "preprocessor_config.json merge_size: 1: not supported; accepted: 2" in capsys.readouterr().err


def test_each_image_has_as_many_tokens_as_its_size_makes() -> None:
    chat = chat_with_sized_images(FORMAT)
    sizes = [(23, 9), (6, 6), (90, 13)]
    parts = [{"type": "image", "size": size} for size in sizes]
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": [*parts, {"type": "text", "text": "Cat?"}]}, {"role": "assistant", "content": "No."}
    ]  # fmt: skip
    tokens = chat.tokens(turns)
    images = "".join(f"<|vision_start|>{'<|image_pad|>' * FORMAT.tokens(size)}<|vision_end|>" for size in sizes)
    assert chat.tokenizer.decode(tokens.ids, skip_special=False).startswith(f"<|im_start|>user\n{images}Cat?<|im_end|>")
    assert [FORMAT.tokens(size) for size in sizes] == [8, 1, 9]
    learned = [token for token, is_learned in zip(tokens.ids, tokens.assistant_mask, strict=True) if is_learned]
    assert chat.tokenizer.decode(learned, skip_special=False) == "No.<|im_end|>"
    with pytest.raises(DataError, match=r"writes 1 times '<\|image_pad\|>' for 0 images; accepted: once for each"):
        chat.prompt_ids([{"role": "user", "content": "a <|image_pad|>"}])


def test_an_example_is_cut_before_an_image_of_any_size_and_not_inside_it() -> None:
    part, ids = 9, [1, 9, 9, 2, 9, 9, 9, 3, 4]
    kept = {length: whole_images(ids[:length], part, [2, 3]) for length in range(1, len(ids) + 1)}
    assert [kept[length] for length in (1, 2)] == [(1, 0), (2, 0)]
    assert [kept[length] for length in (3, 4, 5)] == [(1, 0), (4, 1), (5, 1)]
    assert [kept[length] for length in (6, 7, 8, 9)] == [(4, 1), (4, 1), (8, 2), (9, 2)]
