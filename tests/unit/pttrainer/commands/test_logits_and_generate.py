"""A port is checked by a model's logits and by the tokens that it writes; ids that stand for images are refused."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.builders.peers.inference import forward, load_model, plain
from tests.builders.peers.models import CASES, write_checkpoint

from ptapi.failures import ExitCode
from pttrainer.__main__ import main

GEMMA = CASES["gemma-3"] | {"num_hidden_layers": 3}
LLAMA = CASES["llama-3.0"] | {"num_hidden_layers": 1}
IMAGE = 61
ROWS = [[5, 9, 33, 17, 60], [8, 4], [7, 7, 12, 90, 31, 44, 2, 3, 19, 25, 6, 40, 71]]
NEW = 9


def with_images(tmp_path: Path) -> Path:
    """A Gemma 3 as released: its text part nested, an id for the places of images."""
    directory = write_checkpoint(tmp_path / "model", GEMMA)
    config = {"model_type": "gemma3", "text_config": GEMMA, "image_token_index": IMAGE}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def run(verb: str, directory: Path, rows: Any, *options: str) -> int:
    tokens = directory.parent / "ids.json"
    tokens.write_text(json.dumps(rows))
    return main([verb, "--model", f"file://{directory}", "--tokens", str(tokens), *options])


@pytest.mark.parametrize("verb", ["logits", "generate"])
def test_ids_that_stand_for_images_are_refused(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "logits.npy"
    options = ("--out", str(out)) if verb == "logits" else ("--max-new", "2")
    assert run(verb, with_images(tmp_path), [[5, 9, IMAGE, 4]], *options) == ExitCode.DATA_ERROR
    answer = capsys.readouterr()
    assert f"--tokens: id {IMAGE}: stands for an image" in answer.err
    assert "text alone" in answer.err
    assert not answer.out
    assert not out.exists()


def test_generated_tokens_are_the_likeliest_of_the_full_forward_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of three lengths, through windows, two rotary bases and the cache; without a tokenizer."""
    directory = with_images(tmp_path)
    assert run("generate", directory, ROWS, "--max-new", str(NEW)) == ExitCode.OK
    rows = json.loads(capsys.readouterr().out)
    assert [len(row) for row in rows] == [NEW] * 3
    whole = [[*prompt, *new] for prompt, new in zip(ROWS, rows, strict=True)]
    length = max(map(len, whole))
    logits_BTV = forward(*load_model(directory), [plain(np.array(row, np.int32), length) for row in whole])
    for prompt, new, logits_TV in zip(ROWS, rows, logits_BTV, strict=True):
        assert new == logits_TV.argmax(-1)[len(prompt) - 1 : len(prompt) - 1 + NEW].tolist()


def test_a_row_that_outgrows_short_rotary_factors_goes_on_with_the_long_ones_from_its_beginning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of three rows begins beyond them, one never gets there."""
    switch = 11
    raw = CASES["phi-4-mini"] | {"num_hidden_layers": 1, "original_max_position_embeddings": switch}
    directory = write_checkpoint(tmp_path / "model", raw)
    assert run("generate", directory, ROWS, "--max-new", str(NEW)) == ExitCode.OK
    rows = json.loads(capsys.readouterr().out)
    model, params = load_model(directory)
    whole = [plain(np.array([*prompt, *new], np.int32), 24) for prompt, new in zip(ROWS, rows, strict=True)]
    short_BTV, long_BTV = (
        forward(replace(model, config=model.config.at_length(length)), params, whole) for length in (switch, 24)
    )
    for prompt, new, *logits in zip(ROWS, rows, short_BTV, long_BTV, strict=True):
        short_TV, long_TV = logits
        at = range(len(prompt) - 1, len(prompt) - 1 + NEW)
        assert new == [(short_TV if t < switch else long_TV)[t].argmax() for t in at]
    assert (short_BTV[0].argmax(-1) != long_BTV[0].argmax(-1))[len(ROWS[0]) :].any()


def test_long_prompts_of_a_gated_delta_rule_compile_as_a_user_compiles_them(tmp_path: Path) -> None:
    """In a process of its own: the tests' quick compilation leaves out the pass of XLA that once aborted here."""
    raw = CASES["qwen-3.5"] | {"num_hidden_layers": 1, "layer_types": ["linear_attention"]}
    directory = write_checkpoint(tmp_path / "model", raw)
    (tmp_path / "ids.json").write_text(json.dumps([list(range(70)), list(range(30, 100))]))
    words = ["generate", "--model", f"file://{directory}", "--tokens", str(tmp_path / "ids.json"), "--max-new", "2"]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-m", "pttrainer", *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == ExitCode.OK, done.stderr[-2000:]
    assert [len(row) for row in json.loads(done.stdout)] == [2, 2]


def test_a_row_ends_with_an_end_token_of_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_checkpoint(tmp_path / "model", LLAMA)
    assert run("generate", directory, ROWS[:1], "--max-new", "6") == ExitCode.OK
    [row] = json.loads(capsys.readouterr().out)
    end = next(i for i, token in enumerate(row) if token not in row[:i] and i)
    (directory / "config.json").write_text(json.dumps(LLAMA | {"eos_token_id": [row[end]]}))
    assert run("generate", directory, ROWS[:1], "--max-new", "6") == ExitCode.OK
    assert json.loads(capsys.readouterr().out) == [row[: end + 1]]


def test_the_commands_of_the_guide_to_a_new_model_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_checkpoint(tmp_path / "checkpoint", CASES["smollm-3"] | {"num_hidden_layers": 1})
    guide = (Path(__file__).resolve().parents[4] / "docs/guides/add-a-model.md").read_text()
    (tmp_path / "ids.json").write_text(re.findall(r"^echo '(.*)' > ids\.json$", guide, re.MULTILINE)[0])
    commands = re.findall(r"^python -m pttrainer (.*)$", guide, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["logits", "generate"]
    for command in commands:
        here = command.replace("/tmp/posttrain/checkpoint", str(directory))
        assert main([str(tmp_path / word) if "." in word and ":" not in word else word for word in here.split()]) == 0
    assert np.load(tmp_path / "logits.npy").shape == (2, 4, 107)
    assert [len(row) for row in json.loads(capsys.readouterr().out)] == [8, 8]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([[1, 2], []], ("--max-new", "3"), "a list of lists of token ids"),
        ([[1, 107]], ("--max-new", "3"), "--tokens: id 107: accepted: 0 to 106"),
        ([[1, 2]], ("--max-new", "0"), "--max-new: 0: accepted: a whole number of at least 1"),
    ],
)
def test_what_cannot_be_continued_is_refused(
    rows: Any, options: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_checkpoint(tmp_path / "model", LLAMA)
    assert run("generate", directory, rows, *options) == ExitCode.DATA_ERROR
    answer = capsys.readouterr()
    assert message in answer.err
    assert not answer.out
