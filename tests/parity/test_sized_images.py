"""Models with images of any size against `transformers`, live: logits, generated tokens, and the way back."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import peft
import pytest
from tests.builders.peers import (
    gemma4_image_reference,
    gemma4_images,
    inference,
    llama4_image_reference,
    llama4_images,
    mistral_image_reference,
    mistral_images,
    qwen_image_reference,
    qwen_images,
)
from tests.builders.peers.adapters import adapted, export_both
from tests.builders.peers.image_models import load_model
from tests.builders.peers.sized_image_reference import InputsOf, greedy, load_reference, logits
from tests.builders.peers.sized_images import SizedImages
from tests.builders.pictures import encoded

from pttrainer.__main__ import main
from pttrainer.models import Model, Params
from pttrainer.models.loading.peft_adapters import open_initial_adapters

TOLERANCE = 1e-4
"""Largest difference of a logit, float32; their deviation is 0.4 to 1.4. Not to be loosened."""
PEERS: list[tuple[SizedImages, InputsOf]] = [
    (gemma4_images.MODELS, gemma4_image_reference.inputs),
    (llama4_images.MODELS, llama4_image_reference.inputs),
    (mistral_images.MODELS, mistral_image_reference.inputs),
    (qwen_images.MODELS, qwen_image_reference.inputs),
]
ATTENTION_ALONE = ("qwen-3-vl-moe", "qwen-3.5-moe")
"""Cases whose experts get no adapters that PEFT reads."""


class Both(NamedTuple):
    """A case by them and by us."""

    case: str
    models: SizedImages
    inputs: InputsOf
    theirs: Any
    model: Model
    params: Params


@pytest.fixture(
    scope="module",
    params=[pytest.param((case, *peer), id=case) for peer in PEERS for case in peer[0].cases],
)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    case, models, inputs = request.param
    directory = models.write_checkpoint(tmp_path_factory.mktemp(case), models.cases[case])
    return Both(case, models, inputs, load_reference(directory), *load_model(directory))


def test_logits_are_equal_alone_and_packed(both: Both) -> None:
    alone, packed_TV = both.models.packed_and_alone(both.model, both.params)
    start = 0
    for example, ours_TV in zip(both.models.examples, alone, strict=True):
        expected, end = logits(both.theirs, both.inputs, example), start + len(example[0])
        assert np.abs(ours_TV - expected).max() <= TOLERANCE
        assert np.abs(packed_TV[start:end] - expected).max() <= TOLERANCE
        start = end


def test_greedy_tokens_are_equal(both: Both, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Up to an end token of the model, which ends a row here and not there, or one that stands for other media.

    Of those, which random weights write, transformers embeds padding.
    """
    directory = both.models.write_checkpoint(tmp_path / "model", both.models.cases[both.case])
    rows, files = [], []
    for row, (tokens, pictures) in enumerate(both.models.examples):
        files.append([f"{row}-{number}.png" for number in range(len(pictures))])
        rows.append(tokens.tolist())
        for name, picture in zip(files[-1], pictures, strict=True):
            (tmp_path / name).write_bytes(encoded(picture))
    (tmp_path / "ids.json").write_text(json.dumps(rows))
    (tmp_path / "images.json").write_text(json.dumps(files))
    options = ["--tokens", str(tmp_path / "ids.json"), "--images", str(tmp_path / "images.json"), "--max-new", "12"]
    assert main(["generate", "--model", f"file://{directory}", *options]) == 0
    for ours, example in zip(json.loads(capsys.readouterr().out), both.models.examples, strict=True):
        wanted = greedy(both.theirs, both.inputs, example, 12).tolist()
        config = both.model.config
        media = {config.image_token_id, *dict(config.unsupported_token_ids).values()}
        ends = [place + 1 for place, token in enumerate(wanted) if token in config.eos_ids]
        compared = min([12, *ends, *(place + 1 for place, token in enumerate(wanted) if token in media)])
        assert ours[:compared] == wanted[:compared]
        assert ends[:1] != [compared] or len(ours) == compared


def test_an_export_has_the_same_logits_there_and_adapters_leave_the_tower_alone(both: Both, tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    inference.export(both.model, both.params, tmp_path / "export")
    example = both.models.examples[0]
    again = load_reference(tmp_path / "export")
    expected = logits(both.theirs, both.inputs, example)
    np.testing.assert_array_equal(logits(again, both.inputs, example), expected)
    base = both.models.write_checkpoint(tmp_path / "base", both.models.cases[both.case])
    model, params = _adapted(both)
    apart, merged = export_both(model, params, base, tmp_path)
    ours_TV = _logits(both, model, params)
    with_adapters = peft.PeftModel.from_pretrained(load_reference(base), apart).eval()
    names = [name for name, _ in with_adapters.named_parameters() if "lora_" in name]
    assert names
    assert not [name for name in names if "vis" in name], "vision_tower, visual, embed_vision"
    for reference in (with_adapters, load_reference(merged)):
        assert np.abs(logits(reference, both.inputs, example) - ours_TV).max() <= TOLERANCE


def test_adapters_of_tower_and_projector_have_our_logits_there(both: Both, tmp_path: Path) -> None:
    example, base = both.models.examples[0], both.models.write_checkpoint(tmp_path / "b", both.models.cases[both.case])
    model, params = _adapted(both, vision=True)
    ours_TV = _logits(both, model, params)
    assert np.abs(ours_TV - _logits(both, *_adapted(both))).max() > 0.1  # those of the tower do more
    apart, merged = export_both(model, params, base, tmp_path)
    theirs = peft.PeftModel.from_pretrained(load_reference(base), apart).eval()
    for reference in (theirs, load_reference(merged)):
        assert np.abs(logits(reference, both.inputs, example) - ours_TV).max() <= TOLERANCE
    theirs.save_pretrained(tmp_path / "theirs")
    again = open_initial_adapters(f"file://{tmp_path / 'theirs'}", model, lambda line: None)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    loaded = again.params(model, jax.tree.map(lambda _: device, model.trained(model.abstract())))
    jax.tree.map(np.testing.assert_array_equal, loaded, model.trained(params))


def _adapted(both: Both, *, vision: bool = False) -> tuple[Model, Params]:
    return adapted(both.model, both.params, "deepseek-v3" if both.case in ATTENTION_ALONE else "qwen-3", vision=vision)


def _logits(both: Both, model: Model, params: Params) -> np.ndarray:
    """Our logits of the first example [T, V]."""
    tokens, pictures = both.models.examples[0]
    rows = (tokens[None], np.arange(len(tokens))[None], np.ones((1, len(tokens)), np.int32))
    hidden_BTD = model.forward(params, *rows, images=both.models.images_of(tokens[None], [pictures]))
    return np.asarray(model.logits(params, hidden_BTD))[0]
