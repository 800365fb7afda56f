"""RAFT by real, small runs: the reward rises, and a killed run goes on with the same bits."""

from pathlib import Path

import numpy as np
from tests.builders.trainer import runs

from ptapi import run_directory


def job(home: Path, name: str) -> Path:
    """Two updates a rollout, so that a checkpoint holds one that is still in use."""
    runs.write_rows(home / "train.jsonl", runs.NUMBERS)
    return runs.job(
        home,
        name,
        algorithm={"sft": None, "raft": {"minReward": 0.05, "keepBest": 2, "updatesPerBatch": 2}},
        rewards=runs.own_reward(home, runs.SHARE_OF_LETTER_A, 5),
        training={
            "steps": 24,
            "batchSize": 32,
            "sequenceLength": 48,
            "optimizer": {"learningRate": 1e-2},
            "schedule": {"kind": "constant"},
        },
        rollout={"maxNewTokens": 12},
        checkpoint={"everySteps": 5},
        export={"format": "safetensors"},
        tensorboard={"enabled": False},
    )


def test_the_reward_rises_and_a_killed_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    runs.run(job(tmp_path, "whole"))
    lines = runs.metrics(tmp_path / "runs" / "whole")
    rewards = [line[run_directory.REWARD] for line in lines]
    assert np.mean(rewards[:4]) < 0.05
    assert np.mean(rewards[-4:]) > 0.3
    runs.killed_and_resumed(job(tmp_path, "killed"), 16)
    assert runs.metrics(tmp_path / "runs" / "killed") == lines
    assert runs.exported(tmp_path / "runs" / "killed") == runs.exported(tmp_path / "runs" / "whole")
