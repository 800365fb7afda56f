"""SDPO by real, small runs: samples learn from those that the reward finds good, taught by the average."""

import math
from pathlib import Path

from tests.builders.trainer import runs

from ptapi import run_directory


def hindsight(home: Path, name: str) -> Path:
    """A job with half the policy loss beside the divergence, and two updates a batch."""
    fields = {"minReward": 0.01, "teacher": "average", "updatesPerBatch": 2, "distillationWeight": 0.5}
    return runs.job(
        home,
        name,
        algorithm={"sft": None, "sdpo": fields},
        rewards=runs.own_reward(home, runs.SHARE_OF_LETTER_A, 5),
        training={"steps": 4, "batchSize": 32, "sequenceLength": 48, "ema": {"decay": 0.95}},
        rollout={"maxNewTokens": 12},
        tensorboard={"enabled": False},
    )


def test_samples_learn_from_the_good_ones_of_their_prompt_and_from_rewards_whether_or_not_the_run_is_killed(
    tmp_path: Path,
) -> None:
    runs.write_rows(tmp_path / "train.jsonl", runs.NUMBERS)
    runs.run(hindsight(tmp_path, "whole"))
    lines = runs.metrics(tmp_path / "runs" / "whole")
    assert len(lines) == 4
    for line in lines:
        assert 0 < line["samples/taught"] == line["samples/with_solution"] < 1
        assert line["divergence"] > 0
        assert math.isfinite(line[run_directory.GRAD_NORM])
        assert line[run_directory.GRAD_NORM] > 0
    assert lines[0]["samples/taught"] == lines[1]["samples/taught"]
    assert lines[1]["ratio"] != 1.0, "the policy loss is to the policy before the batch's first update"
    runs.killed_and_resumed(hindsight(tmp_path, "killed"), 4)
    killed = tmp_path / "runs" / "killed"
    assert runs.metrics(killed) == lines
    assert runs.exported(killed) == runs.exported(tmp_path / "runs" / "whole")
