"""Safety nets in real runs: steps that are not finite are skipped alike before and after a kill, and end a run."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file
from tests.builders.models import CASES, tensors

from ptapi import rundir
from ptapi.failures import ExitCode

STEPS = 16


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose embedding of the byte `Z` is broken, and data with and without it."""
    directory = tmp_path_factory.mktemp("safety")
    raw = {**CASES["llama-3.0"], "vocab_size": 264, "bos_token_id": 256, "eos_token_id": 257}
    weights = {name: 0.3 * x if x.ndim == 2 else x for name, x in tensors(raw).items()}
    weights["model.embed_tokens.weight"][ord("Z")] = np.nan
    (directory / "model").mkdir()
    (directory / "model" / "config.json").write_text(json.dumps(raw))
    save_file(weights, directory / "model" / "model.safetensors", {"format": "pt"})
    sums = [(a, b) for a in range(12) for b in range(10)]
    for name, marked in {"some": 9, "all": 1}.items():
        rows = [{"question": f"{a} plus {b}" + "Z" * (i % marked == 0), "answer": f"{a + b}"}
                for i, (a, b) in enumerate(sums)]  # fmt: skip
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def job(home: Path, name: str, data: str, model: str = "", slices: int = 1, **training: Any) -> Path:
    spec = {
        "model": {"uri": model or f"file://{home}/model", "tokenizer": "random://bytes"},
        "algorithm": {"sft": {"packing": False}},
        "data": {"train": {"uri": f"file://{home}/{data}.jsonl"}},
        "training": {
            "steps": STEPS, "batchSize": 4, "sequenceLength": 96, "optimizer": {"learningRate": 1e-3}, **training,
        },
        "checkpoint": {"everySteps": 1},
        "accelerator": {"type": "cpu-1", "slices": slices},
        "output": {"uri": f"file://{home}/runs"},
    }  # fmt: skip
    path = home / f"{name}.yaml"
    kind = {"apiVersion": "posttrain.dev/v1alpha1", "kind": "PostTrainJob", "metadata": {"name": name}}
    path.write_text(yaml.safe_dump({**kind, "spec": spec}))
    return path


def start(home: Path, path: Path, **extra: str) -> subprocess.Popen[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    environment = {**clean, "JAX_COMPILATION_CACHE_DIR": str(home / "xla"), **extra}
    command = [sys.executable, "-m", "pttrainer", "run", str(path)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def metrics(directory: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (directory / rundir.METRICS).read_text().splitlines()]
    return [{k: v for k, v in line.items() if not rundir.is_of_machine(k)} for line in lines]


def test_broken_rows_are_skipped_and_a_killed_run_skips_the_same(home: Path) -> None:
    process = start(home, job(home, "whole", "some"))
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    whole = metrics(home / "runs" / "whole")
    bad = [line["step"] for line in whole if line["loss"] is None]
    assert 2 <= len(bad) < STEPS - 2
    assert whole[-1]["skipped_steps"] == len(bad)
    assert next(line for line in err.splitlines() if "not finite" in line).startswith(f"warning: step {bad[0]}: loss")
    progress = rundir.Progress.model_validate_json((home / "runs" / "whole" / rundir.PROGRESS).read_text())
    assert progress.metrics["skipped_steps"] == len(bad)

    path = job(home, "killed", "some")
    process = start(home, path)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f"step {bad[1]}/"):
            process.kill()
            break
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    process = start(home, path)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "resuming after step" in err
    assert metrics(home / "runs" / "killed") == whole
    one, other = (home / "runs" / name / rundir.EXPORT / "model.safetensors" for name in ("whole", "killed"))
    assert one.read_bytes() == other.read_bytes()


def test_too_many_in_a_row_end_the_run_keep_the_batch_and_say_what_to_try(home: Path) -> None:
    path = job(home, "hopeless", "all", maxNonFiniteSteps=3)
    process = start(home, path)
    _, err = process.communicate(timeout=300)
    assert process.returncode == ExitCode.CONFIG_ERROR, err
    assert "Traceback" not in err
    run = home / "runs" / "hopeless"
    said = rundir.Termination.model_validate_json((run / rundir.TERMINATION).read_text())
    assert said.failure_class == "ConfigError"
    assert "loss and grad_norm are not finite in 3 steps in a row" in said.message
    assert f"file://{run}/{rundir.batch_file(3)}" in said.message
    rows = [json.loads(line) for line in (run / rundir.batch_file(3)).read_text().splitlines()]
    assert len(rows) == 4
    assert all("Z" in text for row in rows for text in row["text"])
    assert ord("Z") in rows[0]["tokens"]


def test_two_processes_skip_and_stop_alike(home: Path) -> None:
    """At this rate and decay weights grow a hundredfold a step, until their squares are beyond float32."""
    explosive = {"optimizer": {"learningRate": 10.0, "weightDecay": 10.0}, "schedule": {"kind": "constant"}}
    path = job(home, "two", "some", "random://tiny", 2, maxNonFiniteSteps=2, **explosive)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    shared = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2"}
    processes = [start(home, path, JAX_PROCESS_ID=str(rank), **shared) for rank in range(2)]
    ends = [(process.communicate(timeout=300)[1], process.returncode) for process in processes]
    assert [code for _, code in ends] == [ExitCode.CONFIG_ERROR] * 2, ends
    for err, _ in ends:
        assert "not finite in 2 steps in a row" in err
    (file,) = (home / "runs" / "two" / rundir.NON_FINITE).iterdir()
    assert len(file.read_text().splitlines()) == 4
