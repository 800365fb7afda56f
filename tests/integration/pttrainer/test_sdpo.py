"""SDPO by a real, small run: its steps learn from samples that the reward finds good, taught by the average."""

import math
from pathlib import Path

from tests.builders.trainer import runs

from ptapi import run_directory


def test_samples_learn_from_the_good_ones_of_their_prompt(tmp_path: Path) -> None:
    runs.write_rows(tmp_path / "train.jsonl", runs.NUMBERS)
    path = runs.job(
        tmp_path,
        "hindsight",
        algorithm={"sft": None, "sdpo": {"minReward": 0.01, "teacher": "average", "updatesPerBatch": 2}},
        rewards=runs.own_reward(tmp_path, runs.SHARE_OF_LETTER_A, 5),
        training={"steps": 4, "batchSize": 32, "sequenceLength": 48, "ema": {"decay": 0.95}},
        rollout={"maxNewTokens": 12},
        tensorboard={"enabled": False},
    )
    runs.run(path)
    lines = runs.metrics(tmp_path / "runs" / "hindsight")
    assert len(lines) == 4
    for line in lines:
        assert 0 < line["samples/taught"] == line["samples/with_solution"] < 1
        assert line["divergence"] > 0
        assert math.isfinite(line[run_directory.GRAD_NORM])
        assert line[run_directory.GRAD_NORM] > 0
    assert lines[0]["samples/taught"] == lines[1]["samples/taught"]
