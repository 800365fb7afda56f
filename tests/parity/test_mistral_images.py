"""Mistral 3 with images of any size against `transformers`, live: logits, tokens, pixels, and the way back."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
from tests.builders.peers import inference
from tests.builders.peers.adapters import adapted, export_both
from tests.builders.peers.image_models import load_model
from tests.builders.peers.mistral_image_reference import greedy, load_reference, logits, processor
from tests.builders.peers.mistral_images import (
    CASES,
    EXAMPLES,
    FORMAT,
    MERGE,
    PATCH,
    images_of,
    packed_and_alone,
    write_checkpoint,
)
from tests.builders.pictures import drawn, encoded

from pttrainer.__main__ import main

TOLERANCE = 1e-4
"""Largest difference of a logit, float32; their deviation is above 1. Not to be loosened."""
OF_PIXELS = 1e-3


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def both(case: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    directory = write_checkpoint(tmp_path_factory.mktemp(case), CASES[case])
    return load_reference(directory), *load_model(directory)


def test_logits_are_equal_alone_and_packed(both: tuple[Any, ...]) -> None:
    theirs, model, params = both
    alone, packed_TV = packed_and_alone(model, params)
    start = 0
    for (tokens, pictures), ours_TV in zip(EXAMPLES, alone, strict=True):
        expected = logits(theirs, tokens, pictures)
        assert np.abs(ours_TV - expected).max() <= TOLERANCE
        assert np.abs(packed_TV[start : start + len(tokens)] - expected).max() <= TOLERANCE
        start += len(tokens)


def test_greedy_tokens_are_equal(
    case: str, both: tuple[Any, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Up to an end token of the model, which ends a row here and not there."""
    directory = write_checkpoint(tmp_path / "model", CASES[case])
    rows, files = [], []
    for row, (tokens, pictures) in enumerate(EXAMPLES):
        files.append([f"{row}-{number}.png" for number in range(len(pictures))])
        rows.append(tokens.tolist())
        for name, picture in zip(files[-1], pictures, strict=True):
            (tmp_path / name).write_bytes(encoded(picture))
    (tmp_path / "ids.json").write_text(json.dumps(rows))
    (tmp_path / "images.json").write_text(json.dumps(files))
    options = ["--tokens", str(tmp_path / "ids.json"), "--images", str(tmp_path / "images.json"), "--max-new", "12"]
    assert main(["generate", "--model", f"file://{directory}", *options]) == 0
    for ours, (tokens, pictures) in zip(json.loads(capsys.readouterr().out), EXAMPLES, strict=True):
        wanted = greedy(both[0], tokens, pictures, 12).tolist()
        ends = [i + 1 for i, token in enumerate(wanted) if token in both[1].config.eos_ids]
        assert ours == wanted[: min([12, *ends])]


def test_an_export_has_the_same_logits_there_and_adapters_leave_the_tower_alone(
    case: str, both: tuple[Any, ...], tmp_path: Path
) -> None:
    theirs, plain_model, weights = both
    (tmp_path / "export").mkdir()
    inference.export(plain_model, weights, tmp_path / "export")
    tokens, pictures = EXAMPLES[0]
    again = load_reference(tmp_path / "export")
    np.testing.assert_array_equal(logits(again, tokens, pictures), logits(theirs, tokens, pictures))
    base = write_checkpoint(tmp_path / "base", CASES[case])
    model, params = adapted(plain_model, weights, "qwen-3")
    apart, merged = export_both(model, params, base, tmp_path)
    rows = (tokens[None], np.arange(len(tokens))[None], np.ones((1, len(tokens)), np.int32))
    hidden_BTD = model.forward(params, *rows, images=images_of(tokens[None], [pictures]))
    ours_TV = np.asarray(model.logits(params, hidden_BTD))[0]
    with_adapters = peft.PeftModel.from_pretrained(load_reference(base), apart).eval()
    names = [name for name, _ in with_adapters.named_parameters() if "lora_" in name]
    assert names
    assert not [name for name in names if "vision_tower" in name]
    for reference in (with_adapters, load_reference(merged)):
        assert np.abs(logits(reference, tokens, pictures) - ours_TV).max() <= TOLERANCE


@pytest.mark.parametrize("size", [(31, 17), (9, 40), (44, 44), (1, 1), (640, 33), (45, 44), (133, 150)], ids=str)
def test_pixels_are_equal(size: tuple[int, int]) -> None:
    picture, token = drawn(*size, seed=sum(size)), PATCH * MERGE
    theirs = processor()([picture], return_tensors="np")
    pixels_CHW, (height, width) = theirs["pixel_values"][0], theirs["image_sizes"][0]
    assert FORMAT.runs(size) == [width // token] * (height // token)
    for row, column, *numbers in FORMAT.array(picture):
        top, left = (int(place - 1) * PATCH for place in (row, column))
        wanted = pixels_CHW[:, top : top + PATCH, left : left + PATCH]
        assert np.abs(wanted.ravel() - numbers).max() <= OF_PIXELS
