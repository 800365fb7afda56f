"""DPO and distillation by real, small runs: they learn, and killed and resumed they end with the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from ptapi import rundir

STEPS = 8
CASES: dict[str, dict[str, Any]] = {
    "dpo": {"dpo": {}},
    "distill": {"distill": {"teacher": {"uri": "random://tiny"}, "beta": 0.5, "studentShare": 0.5}},
}


def start(home: Path, name: str, algorithm: dict[str, Any], **training: Any) -> subprocess.Popen[str]:
    spec = {
        "model": {"uri": "random://tiny"}, "algorithm": algorithm,
        "data": {"train": {"uri": f"file://{home}/rows.jsonl"}, "eval": {"uri": f"file://{home}/rows.jsonl"}},
        "training": {
            "steps": STEPS, "batchSize": 8, "sequenceLength": 64, "optimizer": {"learningRate": 3e-3}, **training
        },
        "rollout": {"maxNewTokens": 8}, "evaluation": {"everySteps": 4}, "checkpoint": {"everySteps": 2},
        "export": {"format": "safetensors"}, "tensorboard": {"enabled": False}, "accelerator": {"type": "cpu-1"},
        "output": {"uri": f"file://{home}/runs"},
    }  # fmt: skip
    head = {"apiVersion": "posttrain.dev/v1alpha1", "kind": "PostTrainJob", "metadata": {"name": name}}
    (home / f"{name}.yaml").write_text(yaml.safe_dump({**head, "spec": spec}))
    flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    return subprocess.Popen(
        [sys.executable, "-m", "pttrainer", "run", str(home / f"{name}.yaml")],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def metrics(home: Path, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (home / "runs" / name / rundir.METRICS).read_text().splitlines()]
    return [{k: v for k, v in line.items() if not rundir.is_of_machine(k)} for line in lines]


@pytest.mark.parametrize(
    ("kind", "training"), [("dpo", {"lora": {"rank": 4, "alpha": 8}, "microBatchSize": 4}), ("distill", {})]
)
def test_a_killed_and_resumed_run_learns_and_ends_with_the_same_bits(
    tmp_path: Path, kind: str, training: dict[str, Any]
) -> None:
    both = {"chosen": "yes", "rejected": "no"} if kind == "dpo" else {"completion": "yes"}
    rows = [{"prompt": f"{i}?", **both} for i in range(20)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole = start(tmp_path, "whole", CASES[kind], **training)
    _, errors = whole.communicate(timeout=500)
    assert whole.returncode == 0, errors
    found = metrics(tmp_path, "whole")
    assert found[-1]["eval/loss"] < found[0]["eval/loss"]

    killed = start(tmp_path, "killed", CASES[kind], **training)
    deadline = time.monotonic() + 400
    while not (tmp_path / "runs" / "killed" / rundir.CHECKPOINTS / "4").exists():
        assert killed.poll() is None, killed.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    again = start(tmp_path, "killed", CASES[kind], **training)
    _, errors = again.communicate(timeout=500)
    assert again.returncode == 0, errors
    assert metrics(tmp_path, "killed") == found
    exports = [tmp_path / "runs" / name / "export" / "model.safetensors" for name in ("whole", "killed")]
    assert exports[0].read_bytes() == exports[1].read_bytes()
