"""Models with images against `transformers`, live: logits of rows with images, and the way back."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import peft
import pytest
from tests.builders.peers import inference
from tests.builders.peers.adapters import adapted, export_both
from tests.builders.peers.image_models import (
    EXAMPLES,
    RAW,
    example,
    images_of,
    load_model,
    packed_and_alone,
    pixels,
    write_checkpoint,
)
from tests.builders.peers.image_reference import greedy, load_reference, logits
from tests.builders.pictures import drawn, encoded

from pttrainer.__main__ import main
from pttrainer.models import Model, Params
from pttrainer.models.loading.peft_adapters import open_initial_adapters

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


def test_greedy_tokens_are_equal(both: tuple[Any, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs, _, _ = both
    directory, tokens = write_checkpoint(tmp_path / "model"), example(5, 7, 2, 9)
    pictures = [drawn(42, 42, seed) for seed in range(2)]
    for number, picture in enumerate(pictures):
        (tmp_path / f"{number}.png").write_bytes(encoded(picture))
    (tmp_path / "ids.json").write_text(json.dumps([tokens.tolist()]))
    (tmp_path / "images.json").write_text('[["0.png", "1.png"]]')
    files = ["--tokens", str(tmp_path / "ids.json"), "--images", str(tmp_path / "images.json")]
    assert main(["generate", "--model", f"file://{directory}", *files, "--max-new", "12"]) == 0
    pixels_ISSC = np.stack([np.asarray(picture, np.float32) / 127.5 - 1 for picture in pictures])
    ours = json.loads(capsys.readouterr().out)[0]
    assert ours == greedy(theirs, tokens, pixels_ISSC, 12).tolist()[: len(ours)]


def test_adapters_apart_have_our_logits_there_and_leave_the_tower_alone(both: tuple[Any, ...], tmp_path: Path) -> None:
    _, plain_model, weights = both
    base, tokens, picture = write_checkpoint(tmp_path / "base", RAW), example(3, 4, 1, 9), pixels(3, 1)
    model, params = adapted(plain_model, weights, "gemma-3")
    apart, merged = export_both(model, params, base, tmp_path)
    rows = (tokens[None], np.arange(len(tokens))[None], np.ones((1, len(tokens)), np.int32))
    ours_TV = np.asarray(model.logits(params, model.forward(params, *rows, images=images_of(tokens[None], [picture]))))[
        0
    ]
    theirs = peft.PeftModel.from_pretrained(load_reference(base), apart).eval()
    adapted_names = {name for name, _ in theirs.named_parameters() if "lora_" in name}
    assert adapted_names
    assert not [name for name in adapted_names if "vision_tower" in name]
    for reference in (theirs, load_reference(merged)):
        assert np.abs(logits(reference, tokens, picture) - ours_TV).max() <= TOLERANCE
    again = open_initial_adapters(f"file://{apart}", model, lambda line: None)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    loaded = again.params(model, jax.tree.map(lambda _: device, model.trained(model.abstract())))
    jax.tree.map(np.testing.assert_array_equal, loaded, model.trained(params))


def test_adapters_of_tower_and_projector_have_our_logits_there(both: tuple[Any, ...], tmp_path: Path) -> None:
    _, plain_model, weights = both
    base, tokens, picture = write_checkpoint(tmp_path / "base", RAW), example(3, 4, 1, 9), pixels(3, 1)
    rows = (tokens[None], np.arange(len(tokens))[None], np.ones((1, len(tokens)), np.int32))
    images = images_of(tokens[None], [picture])

    def ours(model: Model, params: Params) -> np.ndarray:
        return np.asarray(model.logits(params, model.forward(params, *rows, images=images)))[0]

    model, params = adapted(plain_model, weights, "gemma-3", vision=True)
    ours_TV = ours(model, params)
    assert np.abs(ours_TV - ours(*adapted(plain_model, weights, "gemma-3"))).max() > 0.1  # those of the tower do more
    apart, merged = export_both(model, params, base, tmp_path)
    theirs = peft.PeftModel.from_pretrained(load_reference(base), apart).eval()
    for reference in (theirs, load_reference(merged)):
        assert np.abs(logits(reference, tokens, picture) - ours_TV).max() <= TOLERANCE
    theirs.save_pretrained(tmp_path / "theirs")
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shardings = jax.tree.map(lambda _: device, model.trained(model.abstract()))
    for directory in (apart, tmp_path / "theirs"):
        again = open_initial_adapters(f"file://{directory}", model, lambda line: None)
        loaded = again.params(model, shardings)
        jax.tree.map(np.testing.assert_array_equal, loaded, model.trained(params))


def test_an_export_has_the_same_logits_there(both: tuple[Any, ...], tmp_path: Path) -> None:
    theirs, model, params = both
    inference.export(model, params, tmp_path)
    again, tokens = load_reference(tmp_path), example(3, 4, 1, 9)
    np.testing.assert_array_equal(logits(again, tokens, pixels(3, 1)), logits(theirs, tokens, pixels(3, 1)))
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["Gemma3ForConditionalGeneration"]
