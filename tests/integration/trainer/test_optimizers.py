"""Every optimizer, with what else changes a step, in real runs: it learns, and a killed run ends with the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from ptapi import rundir
from ptapi.failures import ExitCode
from pttrainer.models.tensorfile import read_header

STEPS = 8
CASES: dict[str, dict[str, Any]] = {
    "adafactor": {"optimizer": {"name": "adafactor", "learningRate": 3e-3}, "ema": {"decay": 0.5}},
    "muon": {"optimizer": {"name": "muon", "learningRate": 1e-2}, "freeze": ["norms", "layers.0"]},
    "lion": {"optimizer": {"name": "lion", "learningRate": 1e-3}, "neftuneAlpha": 5.0, "microBatchSize": 4},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, and a cache of compiled steps that all runs here share."""
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
        "output": {"uri": f"file://{home}/runs"},
    }
    path = home / f"{name}.yaml"
    kind = {"apiVersion": "posttrain.dev/v1alpha1", "kind": "PostTrainJob", "metadata": {"name": name}}
    path.write_text(yaml.safe_dump({**kind, "spec": spec}))
    return path


def start(home: Path, *arguments: str) -> subprocess.Popen[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    environment = {**clean, "JAX_COMPILATION_CACHE_DIR": str(home / "xla")}
    command = [sys.executable, "-m", "pttrainer", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(home: Path, *arguments: str) -> tuple[int, str]:
    process = start(home, *arguments)
    _, err = process.communicate(timeout=300)
    return process.returncode, err


def metrics(directory: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (directory / rundir.METRICS).read_text().splitlines()]
    return [{k: v for k, v in line.items() if not rundir.is_of_machine(k)} for line in lines]


@pytest.mark.parametrize("name", CASES)
def test_a_run_learns_and_a_killed_one_ends_with_the_same_bits(home: Path, name: str) -> None:
    code, err = run(home, "run", str(job(home, name, CASES[name])))
    assert code == 0, err
    whole = home / "runs" / name
    lines = metrics(whole)
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0] - 0.3

    path = job(home, f"{name}-killed", CASES[name])
    process = start(home, "run", str(path))
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 5/"):
            process.kill()
            break
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    code, err = run(home, "run", str(path))
    assert code == 0, err
    assert "resuming after step" in err
    killed = home / "runs" / f"{name}-killed"
    assert metrics(killed) == lines
    one, other = (directory / rundir.EXPORT / "model.safetensors" for directory in (whole, killed))
    assert one.read_bytes() == other.read_bytes()


def test_the_export_is_the_average_and_can_be_made_again_from_the_checkpoint(home: Path) -> None:
    """Evaluation and export agree: the same run without an average ends elsewhere."""
    averaged = home / "runs" / "adafactor"
    plain = {"optimizer": CASES["adafactor"]["optimizer"]}
    code, err = run(home, "run", str(job(home, "plain", plain)))
    assert code == 0, err
    last, other = metrics(averaged)[-1], metrics(home / "runs" / "plain")[-1]
    assert last["loss"] == other["loss"]  # the weights that train are the same
    assert last["eval/loss"] != other["eval/loss"]
    out = home / "again"
    code, err = run(home, "export", "--checkpoint", f"file://{averaged}", "--out", str(out))
    assert code == 0, err
    assert (out / "model.safetensors").read_bytes() == (averaged / rundir.EXPORT / "model.safetensors").read_bytes()


def test_frozen_weights_leave_the_run_as_they_came(home: Path) -> None:
    code, err = run(home, "run", str(job(home, "first", {"steps": 1, "optimizer": {"learningRate": 1e-30}})))
    assert code == 0, err
    before = read_header(home / "runs" / "first" / rundir.EXPORT / "model.safetensors")
    after = read_header(home / "runs" / "muon" / rundir.EXPORT / "model.safetensors")
    for name in before:
        same = np.array_equal(before[name].rows(0, before[name].shape[0]), after[name].rows(0, after[name].shape[0]))
        assert same == (name.startswith("model.layers.0.") or "norm" in name), name


def test_a_pattern_that_matches_nothing_is_refused_before_anything_is_compiled(home: Path) -> None:
    code, err = run(home, "run", str(job(home, "refused", {"freeze": ["model.layer.0.*"]})))
    assert code == ExitCode.CONFIG_ERROR, err
    assert "spec.training.freeze: model.layer.0.*: matches no weight; accepted: embeddings, head, norms" in err
    assert "Traceback" not in err
