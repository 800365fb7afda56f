"""Every optimizer, with what else changes a step, in real runs: it learns, and a killed run ends with the same bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.builders.trainer import runs
from tests.builders.trainer.runs import command, end, exported, killed_and_resumed, metrics, run

from ptapi import run_directory
from ptapi.failures import ExitCode
from pttrainer.models.weights.safetensors_file import read_header

STEPS = 8
CASES: dict[str, dict[str, Any]] = {
    "adafactor": {"optimizer": {"name": "adafactor", "learningRate": 3e-3}, "ema": {"decay": 0.5}},
    "muon": {"optimizer": {"name": "muon", "learningRate": 1e-2}, "freeze": ["norms", "layers.0"]},
    "lion": {"optimizer": {"name": "lion", "learningRate": 1e-3}, "neftuneAlpha": 5.0, "microBatchSize": 4},
}


def job(home: Path, name: str, training: dict[str, Any]) -> Path:
    held_out = {"eval": {"uri": f"file://{home}/train.jsonl", "limit": 20}}
    return runs.job(home, name, data=held_out, training={"steps": STEPS, "optimizer": {}, **training})


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
    assert exported(killed) == exported(whole(home, name))


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
    assert (out / "model.safetensors").read_bytes() == exported(averaged)


def test_frozen_weights_leave_the_run_as_they_came(home: Path) -> None:
    first = job(home, "first", {"steps": 1, "optimizer": {"learningRate": 1e-12, "eps": 1.0, "maxGradNorm": 1e-9}})
    runs.refused(first, ExitCode.CONFIG_ERROR, "no weight changed")  # so its checkpoint has the first ones
    run_first = f"file://{home}/runs/first"
    assert end(command("export", "--checkpoint", run_first, "--out", str(home / "first")))[0] == 0
    before = read_header(home / "first" / "model.safetensors")
    after = read_header(whole(home, "muon") / run_directory.EXPORT / "model.safetensors")
    for name in before:
        same = np.array_equal(before[name].rows(0, before[name].shape[0]), after[name].rows(0, after[name].shape[0]))
        assert same == (name.startswith("model.layers.0.") or "norm" in name), name
