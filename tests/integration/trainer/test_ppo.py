"""PPO by real, small runs: policy and critic learn, and survive kill -9 to the bit."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
from tests.builders import runs

from ptapi import rundir
from pttrainer.models.tensorfile import read_header

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


def values(home: Path, name: str) -> list[dict[str, Any]]:
    """What the clock does not say."""
    return [{k: v for k, v in line.items() if not rundir.is_of_machine(k)} for line in runs.metrics(home, name)]


def test_policy_and_critic_learn_and_a_killed_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    whole = runs.write_job(tmp_path, "whole", spec(tmp_path, steps=31, every=100))
    runs.run(tmp_path, whole, flags=runs.QUICK)
    found = values(tmp_path, "whole")
    assert np.mean([line[rundir.REWARD] for line in found[:3]]) < 0.05
    assert found[-1][rundir.REWARD] > 0.4

    killed = runs.write_job(tmp_path, "killed", spec(tmp_path, steps=7, every=1))
    (process,) = runs.start(tmp_path, killed, flags=runs.QUICK)
    deadline = time.monotonic() + 300
    while not (tmp_path / "runs" / "killed" / rundir.CHECKPOINTS / "3").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert "resuming after step" in runs.run(tmp_path, killed, flags=runs.QUICK)
    assert values(tmp_path, "killed") == found[:7]

    export = tmp_path / "runs" / "whole" / rundir.EXPORT
    assert not any("value" in name for name in read_header(export / "model.safetensors"))
    there = {file.name for file in (export / rundir.CRITIC).iterdir()}
    assert there == {"config.json", "model.safetensors", "value_head.safetensors"}
