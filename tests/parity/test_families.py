"""Every family against `transformers`, live: rows of every kind, greedy tokens, and the way back."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.builders.peers import transformers_reference as reference
from tests.builders.peers.inference import export, forward, greedy, left_padded, load_model, packed, plain
from tests.builders.peers.models import CASES, LENGTH, NEW_TOKENS, SHORT, examples, write_checkpoint

from pttrainer.__main__ import main

TOLERANCE = 1e-4
"""Largest difference of a logit, float32; their deviation is above 1. Not to be loosened."""


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """raw config, directory, their model, our model, our weights"""
    raw = CASES[request.param]
    directory = write_checkpoint(tmp_path_factory.mktemp(request.param), raw)
    return raw, directory, reference.load_reference(directory), *load_model(directory)


def test_logits_are_equal_in_plain_packed_and_left_padded_rows(case: tuple[Any, ...]) -> None:
    raw, _, theirs, model, params = case
    whole, *short = examples(raw)
    rows = [plain(whole, LENGTH), packed(short, LENGTH), *(left_padded(example, LENGTH) for example in short)]
    long_TV, packed_TV, *padded = forward(model, params, rows)
    assert np.abs(long_TV - reference.logits(theirs, whole)).max() <= TOLERANCE
    starts = np.cumsum([0, *SHORT])
    for example, start, padded_TV in zip(short, starts, padded, strict=False):
        alone_TV = reference.logits(theirs, example)
        assert np.abs(packed_TV[start : start + len(example)] - alone_TV).max() <= TOLERANCE
        # Its queries grow with the place in the row there, padding included: what padding should not change, it does.
        if raw["model_type"] == "llama4_text":
            theirs_padded_TV = alone_TV
        else:
            theirs_padded_TV = reference.logits_left_padded(theirs, example, LENGTH)
        assert np.abs(padded_TV[-len(example) :] - theirs_padded_TV).max() <= TOLERANCE


def test_greedy_tokens_are_equal(case: tuple[Any, ...]) -> None:
    raw, _, theirs, model, params = case
    prompts = examples(raw)[1:]
    for ours, prompt in zip(greedy(model, params, prompts, NEW_TOKENS), prompts, strict=True):
        np.testing.assert_array_equal(ours, reference.greedy(theirs, prompt, NEW_TOKENS))


def test_the_verb_generate_writes_their_tokens(case: tuple[Any, ...], tmp_path: Path, capsys: Any) -> None:
    """Up to an end token of the model, which ends a row here and not there."""
    raw, directory, theirs, model, _ = case
    prompts = examples(raw)[1:]
    (tmp_path / "ids.json").write_text(json.dumps([prompt.tolist() for prompt in prompts]))
    options = ["--model", f"file://{directory}", "--tokens", str(tmp_path / "ids.json"), "--max-new", "24"]
    assert main(["generate", *options]) == 0
    for ours, prompt in zip(json.loads(capsys.readouterr().out), prompts, strict=True):
        wanted = reference.greedy(theirs, prompt, 24).tolist()
        ends = [i + 1 for i, token in enumerate(wanted) if token in model.config.eos_ids]
        assert ours == wanted[: min([24, *ends])]


@pytest.mark.parametrize("switch", [12, 40])
def test_a_row_that_outgrows_short_rotary_factors_is_begun_anew(switch: int, tmp_path: Path, capsys: Any) -> None:
    raw = CASES["phi-4-mini"] | {"original_max_position_embeddings": switch}
    directory = write_checkpoint(tmp_path / "model", raw)
    theirs, prompts = reference.load_reference(directory), examples(raw)[1:]
    (tmp_path / "ids.json").write_text(json.dumps([prompt.tolist() for prompt in prompts]))
    options = ["--model", f"file://{directory}", "--tokens", str(tmp_path / "ids.json"), "--max-new", "24"]
    assert main(["generate", *options]) == 0
    for ours, prompt in zip(json.loads(capsys.readouterr().out), prompts, strict=True):
        assert ours == reference.greedy(theirs, prompt, 24).tolist()


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_files_of_a_mistral_3_decide_whether_its_head_is_tied(is_tied: bool, tmp_path: Path) -> None:
    """Where `config.json` has no tie_word_embeddings; that of its text part counts for nothing."""
    tower = {"model_type": "pixtral", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = transformers.Mistral3Config(
        text_config=CASES["mistral"],
        vision_config=tower | {"intermediate_size": 8},
        image_token_index=2,
        tie_word_embeddings=is_tied,
    )
    torch.manual_seed(0)
    transformers.AutoModelForImageTextToText.from_config(config).save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    del raw["tie_word_embeddings"]
    raw["text_config"]["tie_word_embeddings"] = not is_tied
    (tmp_path / "config.json").write_text(json.dumps(raw))
    theirs = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float32).eval()
    whole, out = examples(CASES["mistral"])[0], tmp_path / "logits.npy"
    (tmp_path / "ids.json").write_text(json.dumps([whole.tolist()]))
    options = ["--model", f"file://{tmp_path}", "--tokens", str(tmp_path / "ids.json"), "--out", str(out)]
    assert main(["logits", *options]) == 0
    assert np.abs(np.load(out)[0] - reference.logits(theirs, whole)).max() <= TOLERANCE


def test_an_export_has_the_same_logits_there(case: tuple[Any, ...], tmp_path: Path) -> None:
    raw, _, theirs, model, params = case
    export(model, params, tmp_path)
    again = reference.load_reference(tmp_path)
    whole = examples(raw)[0]
    np.testing.assert_array_equal(reference.logits(again, whole), reference.logits(theirs, whole))
    assert again.config.architectures == [type(theirs).__name__]
