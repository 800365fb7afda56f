"""PPO by real, small runs: policy and critic learn, and survive kill -9 to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tests.builders.trainer import runs

from ptapi import run_directory
from pttrainer.models.weights.safetensors_file import read_header

SHARE_OF_LETTER_A = "def reward(prompt, completion, row):\n    return completion.count('a') / max(len(completion), 1)\n"


def spec(home: Path, *, steps: int, every: int) -> dict[str, Any]:
    """Two updates a rollout, so that a checkpoint holds one that is still in use; a rate that no length changes."""
    rows = home / "train.jsonl"
    rows.write_text("".join(json.dumps({"question": f"{i}?", "answer": str(i)}) + "\n" for i in range(40)))
    (home / "own.py").write_text(SHARE_OF_LETTER_A)
    return {
        "model": {"uri": "random://tiny"},
        "algorithm": {
            "ppo": {
                "updatesPerBatch": 2, "klCoefficient": 0.001, "bootstrapTruncated": True,
                "critic": {"kind": "model", "learningRate": 3e-3},
            }
        },
        "data": {"train": {"uri": f"file://{rows}"}},
        "rewards": [{"name": "own", "python": {"uri": f"file://{home}/own.py"}, "timeoutSeconds": 5}],
        "training": {
            "steps": steps, "batchSize": 32, "sequenceLength": 48, "optimizer": {"learningRate": 1e-2},
            "schedule": {"kind": "constant"},
        },
        "rollout": {"maxNewTokens": 12},
        "checkpoint": {"everySteps": every},
        "tensorboard": {"enabled": False},
        "accelerator": {"type": "cpu-1"},
    }  # fmt: skip


def test_policy_and_critic_learn_and_a_killed_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    whole = runs.write_job(tmp_path, "whole", spec(tmp_path, steps=31, every=100))
    runs.run(whole)
    found = runs.metrics(tmp_path / "runs" / "whole")
    assert np.mean([line[run_directory.REWARD] for line in found[:3]]) < 0.05
    assert found[-1][run_directory.REWARD] > 0.4

    killed = runs.write_job(tmp_path, "killed", spec(tmp_path, steps=7, every=1))
    runs.killed_and_resumed(killed, 5)
    assert runs.metrics(tmp_path / "runs" / "killed") == found[:7]

    export = tmp_path / "runs" / "whole" / run_directory.EXPORT
    assert not any("value" in name for name in read_header(export / "model.safetensors"))
    there = {file.name for file in (export / run_directory.CRITIC).iterdir()}
    assert there == {"config.json", "model.safetensors", "value_head.safetensors"}
