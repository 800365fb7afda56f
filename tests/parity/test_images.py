"""Models with images against `transformers`, live: logits of rows with images, and the way back."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.builders.peers import inference
from tests.builders.peers.image_models import (
    EXAMPLES,
    RAW,
    example,
    load_model,
    packed_and_alone,
    pixels,
    write_checkpoint,
)
from tests.builders.peers.image_reference import load_reference, logits

TOLERANCE = 1e-4
"""Largest difference of a logit, float32; their deviation is above 1. Not to be loosened."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    directory = write_checkpoint(tmp_path_factory.mktemp("gemma-3"), RAW)
    return load_reference(directory), *load_model(directory)


def test_logits_are_equal_alone_and_packed(both: tuple[Any, ...]) -> None:
    theirs, model, params = both
    alone, packed_TV = packed_and_alone(model, params)
    start = 0
    for (tokens, of_example), ours_TV in zip(EXAMPLES, alone, strict=True):
        expected = logits(theirs, tokens, of_example)
        assert np.abs(ours_TV - expected).max() <= TOLERANCE
        assert np.abs(packed_TV[start : start + len(tokens)] - expected).max() <= TOLERANCE
        start += len(tokens)


def test_an_export_has_the_same_logits_there(both: tuple[Any, ...], tmp_path: Path) -> None:
    theirs, model, params = both
    inference.export(model, params, tmp_path)
    again, tokens = load_reference(tmp_path), example(3, 4, 1, 9)
    np.testing.assert_array_equal(logits(again, tokens, pixels(3, 1)), logits(theirs, tokens, pixels(3, 1)))
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["Gemma3ForConditionalGeneration"]
