"""A reward model by real, small runs: it learns a preference, and policies learn from it."""

from pathlib import Path
from typing import Any

import numpy as np
from tests.builders.trainer import runs

from ptapi import run_directory

ACCURACY, SHARE = 0.9, 0.4
"""The bars, written before the first run: held-out pairs in the right order, and letters `a` in a policy's samples."""


def preference(number: int) -> dict[str, str]:
    """A pair in which the answer with more letters `a` is better."""
    random = np.random.default_rng(number)
    few, many = sorted(random.choice(13, 2, replace=False).tolist())
    letters = {side: "a" * count + "".join(map(chr, random.integers(33, 97, 12 - count))) for side, count in
               (("chosen", many), ("rejected", few))}  # fmt: skip
    return {"prompt": f"{number % 40}?", **{side: "".join(random.permutation(list(x))) for side, x in letters.items()}}


def reward_job(home: Path) -> Path:
    runs.write_rows(home / "pairs.jsonl", map(preference, range(800)))
    runs.write_rows(home / "held-out.jsonl", map(preference, range(800, 900)))
    return runs.job(
        home,
        "taste",
        algorithm={"sft": None, "reward": {"centering": 0.01}},
        data={
            part: {"uri": f"file://{home}/{name}.jsonl"} for part, name in (("train", "pairs"), ("eval", "held-out"))
        },
        training={"batchSize": 64, "microBatchSize": 32, "sequenceLength": 48, "steps": 60},
        evaluation={"batchSize": 100},
        checkpoint={"everySteps": 1000},
        tensorboard={"enabled": False},
    )


def policy_job(home: Path, name: str, algorithm: dict[str, Any], steps: int) -> Path:
    """Learns from the reward model alone; the true share of `a` is only measured."""
    runs.write_rows(home / "train.jsonl", runs.NUMBERS)
    taste = {"name": "taste", "model": {"uri": f"file://{home}/runs/taste/export", "batchSize": 16}}
    shown = [{**runs.own_reward(home, runs.SHARE_OF_LETTER_A, 5)[0], "weight": 0.0}]
    return runs.job(
        home,
        name,
        algorithm={"sft": None, **algorithm},
        rewards=[taste, *shown],
        training={"steps": steps, "batchSize": 32, "sequenceLength": 48, "optimizer": {"learningRate": 1e-2},
                  "schedule": {"kind": "constant"}},
        rollout={"maxNewTokens": 12},
        checkpoint={"everySteps": 1000},
        tensorboard={"enabled": False},
    )  # fmt: skip


def test_a_reward_model_learns_and_grpo_and_ppo_learn_from_it(tmp_path: Path) -> None:
    runs.run(reward_job(tmp_path))
    taste = runs.metrics(tmp_path / "runs" / "taste")
    assert taste[-1]["eval/rewards/accuracies"] >= ACCURACY, taste[-1]

    runs.run(policy_job(tmp_path, "grpo", {"grpo": {"groupSize": 8}}, steps=40))
    lines = runs.metrics(tmp_path / "runs" / "grpo")
    assert lines[0]["reward/own"] < 0.05
    assert lines[-1]["reward/own"] > SHARE, lines[-1]
    assert lines[-1][run_directory.REWARD] == lines[-1]["reward/taste"]

    ppo = {"ppo": {"updatesPerBatch": 1, "critic": {"learningRate": 3e-3}}}
    runs.run(policy_job(tmp_path, "ppo", ppo, steps=2))
    assert runs.metrics(tmp_path / "runs" / "ppo")[-1]["reward/taste/missing"] == 0
