"""Mistral 3 and Ministral 3 with images: beyond their numbers: tokens, frozen parts, and what their files may say."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.builders.peers.mistral_images import (
    CASES,
    END,
    FORMAT,
    LINE_END,
    MODELS,
    PART,
    PREPROCESSOR,
    PROCESSOR,
    tokens_of,
)
from tests.builders.pictures import drawn, encoded

from ptapi.failures import ExitCode
from ptapi.spec import Training
from pttrainer.__main__ import main
from pttrainer.data.tokenization.image_slots import runs_of, slots, whole_images
from pttrainer.data.tokenization.image_tokens import expanded, pixtral
from pttrainer.errors import ConfigError, DataError
from pttrainer.models import ModelStructure, from_hf
from pttrainer.train_step.optimizer import freeze_patterns

MOST = 1000
TEXTS = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")


def test_a_mark_becomes_lines_of_tokens_with_ends() -> None:
    tokens = pixtral(TEXTS, (PART, LINE_END, END), MOST, FORMAT)
    messages = [{"role": "user", "content": [{"type": "image", "size": (13, 7)}, {"type": "text", "text": "?"}]}]
    line = "[IMG]" * 3
    assert expanded("<s>[IMG]?", messages, tokens) == f"<s>{line}[IMG_BREAK]{line}[IMG_END]?"
    with pytest.raises(DataError, match=r"writes 2 times '\[IMG\]' for 1 images"):
        expanded("<s>[IMG][IMG]", messages, tokens)


def test_slots_go_on_from_line_to_line_and_move_with_their_tokens() -> None:
    ids = np.array([5, *tokens_of(drawn(13, 7)), 6, *tokens_of(drawn(5, 8)), 7])
    runs = [FORMAT.runs((13, 7)), FORMAT.runs((5, 8))]
    own_T = slots(ids, PART, runs, MOST, "here")
    assert own_T[own_T > 0].tolist() == [*range(1, 7), 1 + MOST, 2 + MOST]
    assert runs_of(own_T, MOST) == runs == [[3, 3], [1, 1]]
    with pytest.raises(
        DataError, match="runs of 3, 3, 1, 1 tokens of id 10; accepted: runs of lines or tiles for its 1 images: 2 of 4"
    ):
        slots(ids, PART, [[4, 4]], MOST, "here")
    counts = [sum(run) for run in runs]
    assert [whole_images(ids[:end].tolist(), PART, counts) for end in (4, 10, 13, len(ids))] == [
        (1, 0), (10, 1), (10, 1), (len(ids), 2),
    ]  # fmt: skip


def test_a_tower_is_trained_when_a_job_says_so() -> None:
    config = from_hf(CASES["mistral-3"], images=True)
    frozen = {
        vision: freeze_patterns.fully_frozen(freeze_patterns.patterns_of(Training(vision=vision), config), config)
        for vision in ("frozen", "projector", "all")
    }
    of_vision = {path for path in ModelStructure(config).weights if path[0] == "vision"}
    projector = {path for path in of_vision if path[1].split("_")[0] in ("token", "merge", "inner", "outer")}
    assert len(projector) == 6
    assert frozen == {"frozen": of_vision, "projector": of_vision - projector, "all": frozenset()}


def logits(directory: Path, rows: list[list[int]], files: Any) -> int:
    tokens, images = directory.parent / "ids.json", directory.parent / "images.json"
    tokens.write_text(json.dumps(rows))
    images.write_text(json.dumps(files))
    options = ["--tokens", str(tokens), "--images", str(images), "--out", f"{directory}.npy"]
    return main(["logits", "--model", f"file://{directory}", *options])


@pytest.mark.parametrize(
    ("file", "change", "answer"),
    [
        ("processor_config.json", {"patch_size": 4}, "processor_config.json patch_size: 4: not supported; accepted: 3"),
        ("processor_config.json", {"image_end_token": "</IMG>"},
         "image_end_token: '</IMG>': not supported; accepted: [IMG_END]"),
        ("preprocessor_config.json", {"size": {"height": 9}}, "preprocessor_config.json size height: 9: not supported"),
        ("preprocessor_config.json", {"do_center_crop": True}, "do_center_crop: True: not supported; accepted: False"),
        ("preprocessor_config.json", {"resample": 6}, "resample: 6: not supported; accepted: 0, 1, 2, 3, 4, 5"),
    ],
)  # fmt: skip
def test_preprocessing_that_is_not_computed_is_refused(
    tmp_path: Path, file: str, change: dict[str, Any], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = MODELS.write_checkpoint(tmp_path / "model", CASES["mistral-3"])
    whole = PROCESSOR if file == "processor_config.json" else PREPROCESSOR
    (directory / file).write_text(json.dumps(whole | change))
    assert logits(directory, [[15, 16]], [[]]) == ExitCode.CONFIG_ERROR
    assert answer in capsys.readouterr().err


def test_images_that_do_not_fit_their_tokens_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = MODELS.write_checkpoint(tmp_path / "model", CASES["mistral-3"])
    (tmp_path / "a.png").write_bytes(encoded(drawn(13, 7)))
    assert logits(directory, [[5, PART, PART, END, 6]], [["a.png"]]) == ExitCode.DATA_ERROR
    assert (
        "runs of 2 tokens of id 10; accepted: runs of lines or tiles for its 1 images: 2 of 3"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"vision_feature_layer": -2}, "vision_feature_layer: -2: not supported; accepted: -1"),
        ({"vision_config": {"model_type": "siglip"}}, "model_type: 'siglip': not supported; accepted: pixtral"),
        ({"vision_config": {"num_attention_heads": 5}}, "num_attention_heads: 5: accepted: heads of an even size"),
    ],
)  # fmt: skip
def test_a_tower_that_is_not_computed_is_refused(change: dict[str, Any], answer: str) -> None:
    with pytest.raises(ConfigError, match=answer):
        from_hf(CASES["mistral-3"] | change, images=True)


def test_mistral_small_3_1_has_as_many_weights_as_its_released_files() -> None:
    text = {
        "model_type": "mistral", "hidden_size": 5120, "intermediate_size": 32_768, "num_hidden_layers": 40,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131_072,
        "rope_theta": 1e9, "sliding_window": None, "tie_word_embeddings": False,
    }  # fmt: skip
    tower = {"model_type": "pixtral", "patch_size": 14, "image_size": 1540, "hidden_act": "silu", "head_dim": 64}
    config = from_hf({"model_type": "mistral3", "text_config": text, "vision_config": tower}, images=True)
    assert sum(spec.size for spec in ModelStructure(config).weights.values()) == 24_011_361_280
