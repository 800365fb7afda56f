"""Every optimizer, with what else changes a step, in real runs: it learns, and a killed run ends with the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.builders.trainer.runs import command, end, killed_and_resumed, metrics, run, write_job

from ptapi import run_directory
from ptapi.failures import ExitCode
from pttrainer.models.weights.safetensors_file import read_header

STEPS = 8
CASES: dict[str, dict[str, Any]] = {
    "adafactor": {"optimizer": {"name": "adafactor", "learningRate": 3e-3}, "ema": {"decay": 0.5}},
    "muon": {"optimizer": {"name": "muon", "learningRate": 1e-2}, "freeze": ["norms", "layers.0"]},
    "lion": {"optimizer": {"name": "lion", "learningRate": 1e-3}, "neftuneAlpha": 5.0, "microBatchSize": 4},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of all runs here."""
    directory = tmp_path_factory.mktemp("optimizers")
    rows = [{"question": f"What is {a} plus {b}?", "answer": f"{a + b}"} for a in range(12) for b in range(10)]
    (directory / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def job(home: Path, name: str, training: dict[str, Any]) -> Path:
    data = {"uri": f"file://{home}/train.jsonl"}
    spec = {
        "model": {"uri": "random://tiny"},
        "algorithm": {"sft": {}},
        "data": {"train": data, "eval": {**data, "limit": 20}},
        "training": {"steps": STEPS, "batchSize": 8, "sequenceLength": 96, **training},
        "checkpoint": {"everySteps": 2},
        "accelerator": {"type": "cpu-1"},
    }
    return write_job(home, name, spec)


def whole(home: Path, name: str) -> Path:
    """The run directory of a case that nothing happened to; whoever asks first runs it."""
    if not (home / "runs" / name).exists():
        run(job(home, name, CASES[name]))
    return home / "runs" / name


@pytest.mark.parametrize("name", CASES)
def test_a_run_learns_and_a_killed_one_ends_with_the_same_bits(home: Path, name: str) -> None:
    lines = metrics(whole(home, name))
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0] - 0.3

    killed_and_resumed(job(home, f"{name}-killed", CASES[name]), 5)
    killed = home / "runs" / f"{name}-killed"
    assert metrics(killed) == lines
    one, other = (directory / run_directory.EXPORT / "model.safetensors" for directory in (whole(home, name), killed))
    assert one.read_bytes() == other.read_bytes()


def test_the_export_is_the_average_and_can_be_made_again_from_the_checkpoint(home: Path) -> None:
    """Evaluation and export agree: the same run without an average ends elsewhere."""
    averaged = whole(home, "adafactor")
    run(job(home, "plain", {"optimizer": CASES["adafactor"]["optimizer"]}))
    last, other = metrics(averaged)[-1], metrics(home / "runs" / "plain")[-1]
    assert last["loss"] == other["loss"]  # the weights that train are the same
    assert last["eval/loss"] != other["eval/loss"]
    out = home / "again"
    code, err = end(command("export", "--checkpoint", f"file://{averaged}", "--out", str(out)))
    assert code == 0, err
    assert (out / "model.safetensors").read_bytes() == (
        averaged / run_directory.EXPORT / "model.safetensors"
    ).read_bytes()


def test_frozen_weights_leave_the_run_as_they_came(home: Path) -> None:
    code, err = end(command("run", str(job(home, "first", {"steps": 1, "optimizer": {"learningRate": 1e-30}}))))
    assert (code, "no weight changed" in err) == (ExitCode.CONFIG_ERROR, True)  # so its checkpoint has the first ones
    run_first = f"file://{home}/runs/first"
    assert end(command("export", "--checkpoint", run_first, "--out", str(home / "first")))[0] == 0
    before = read_header(home / "first" / "model.safetensors")
    after = read_header(whole(home, "muon") / run_directory.EXPORT / "model.safetensors")
    for name in before:
        same = np.array_equal(before[name].rows(0, before[name].shape[0]), after[name].rows(0, after[name].shape[0]))
        assert same == (name.startswith("model.layers.0.") or "norm" in name), name


def test_a_pattern_that_matches_nothing_is_refused_before_anything_is_compiled(home: Path) -> None:
    code, err = end(command("run", str(job(home, "refused", {"freeze": ["model.layer.0.*"]}))))
    assert code == ExitCode.CONFIG_ERROR, err
    assert "spec.training.freeze: model.layer.0.*: matches no weight; accepted: embeddings, head, norms" in err
    assert "Traceback" not in err
