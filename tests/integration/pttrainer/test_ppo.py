"""PPO by real, small runs: policy and critic learn, and survive kill -9 to the bit."""

from pathlib import Path

import numpy as np
from tests.builders.trainer import runs

from ptapi import run_directory
from pttrainer.models.weights.safetensors_file import read_header


def job(home: Path, name: str, steps: int, every: int) -> Path:
    """Two updates a rollout, so that a checkpoint holds one that is still in use; a rate that no length changes."""
    runs.write_rows(home / "train.jsonl", runs.NUMBERS)
    critic = {"kind": "model", "learningRate": 3e-3}
    ppo = {"updatesPerBatch": 2, "klCoefficient": 0.001, "bootstrapTruncated": True, "critic": critic}
    rate = {"optimizer": {"learningRate": 1e-2}, "schedule": {"kind": "constant"}}
    return runs.job(
        home,
        name,
        algorithm={"sft": None, "ppo": ppo},
        rewards=runs.own_reward(home, runs.SHARE_OF_LETTER_A, 5),
        training={"steps": steps, "batchSize": 32, "sequenceLength": 48, **rate},
        rollout={"maxNewTokens": 12},
        checkpoint={"everySteps": every},
        tensorboard={"enabled": False},
    )


def test_policy_and_critic_learn_and_a_killed_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    runs.run(job(tmp_path, "whole", steps=31, every=100))
    lines = runs.metrics(tmp_path / "runs" / "whole")
    assert np.mean([line[run_directory.REWARD] for line in lines[:3]]) < 0.05
    assert lines[-1][run_directory.REWARD] > 0.4

    runs.killed_and_resumed(job(tmp_path, "killed", steps=7, every=1), 5)
    assert runs.metrics(tmp_path / "runs" / "killed") == lines[:7]

    export = tmp_path / "runs" / "whole" / run_directory.EXPORT
    assert not any("value" in name for name in read_header(export / "model.safetensors"))
    there = {file.name for file in (export / run_directory.CRITIC).iterdir()}
    assert there == {"config.json", "model.safetensors", "value_head.safetensors"}
