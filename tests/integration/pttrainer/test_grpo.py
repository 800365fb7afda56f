"""GRPO by real, small runs: it learns, survives kill -9 to the bit, and bears rewards that misbehave."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.builders.trainer import runs
from tests.builders.trainer.runs import SHARE_OF_LETTER_A

from ptapi import run_directory
from ptapi.failures import ExitCode
from pttrainer.train_step import entropy

GSM8K = Path(__file__).resolve().parents[4] / "shared" / "data" / "gsm8k" / "train.jsonl"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return runs.write_rows(tmp_path / "train.jsonl", runs.NUMBERS)


def job(directory: Path, rows: Path, reward: str | None, **changes: Any) -> Path:
    """A job file; `reward` is the source of a Python reward, or None for gsm8k."""
    spec: dict[str, Any] = {
        "algorithm": {"sft": None, "grpo": {"groupSize": 4}},
        "data": {"train": {"uri": f"file://{rows}"}},
        "rewards": [{"builtin": "gsm8k"}] if reward is None else runs.own_reward(directory, reward),
        "training": {"steps": 6, "batchSize": 16, "sequenceLength": 48, "optimizer": {"learningRate": 1e-2}},
        "rollout": {"maxNewTokens": 12},
        "checkpoint": {"everySteps": 1},
        "export": {"format": "none"},
        "tensorboard": {"enabled": False},
    }
    for path, value in changes.items():
        place = spec
        *parents, last = path.split("__")
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return runs.job(directory, "run", spec)


def metrics(directory: Path) -> list[dict[str, Any]]:
    return runs.metrics(directory / "runs" / "run")


def samples(directory: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in (directory / "runs" / "run" / run_directory.SAMPLES).iterdir()}


def test_the_reward_rises(tmp_path: Path, rows: Path) -> None:
    path = job(tmp_path, rows, SHARE_OF_LETTER_A, training__steps=30, training__batchSize=32, checkpoint__everySteps=30)
    runs.run(path)
    rewards = [line[run_directory.REWARD] for line in metrics(tmp_path)]
    assert np.mean(rewards[:3]) < 0.05
    assert np.mean(rewards[-3:]) > 0.5


STATEFUL: dict[str, Any] = {
    "groupSize": 4,
    "updatesPerBatch": 3,
    "beta": 0.05,
    "referenceSync": {"everySteps": 2, "mixup": 0.5},
    "entropyBonus": {"coefficient": 0.001, "adaptive": {"target": 100.0, "delta": 0.001}},
}
"""All that grpo keeps between steps besides weights: samples in use, a reference that follows, a coefficient."""


def test_a_run_that_is_killed_and_resumed_equals_one_that_is_not_to_the_bit(tmp_path: Path, rows: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for directory in (whole, killed):
        directory.mkdir()
        job(directory, rows, SHARE_OF_LETTER_A, algorithm__grpo=STATEFUL)
    runs.run(whole / "run.yaml")
    runs.killed_and_resumed(killed / "run.yaml", 4)
    assert metrics(killed) == metrics(whole)
    assert samples(killed) == samples(whole)
    assert len({line[entropy.COEFFICIENT] for line in metrics(whole)}) == 6
    assert metrics(whole)[3][run_directory.KL] > 0


def test_what_was_sampled_since_the_checkpoint_is_not_sampled_again_after_a_kill(tmp_path: Path, rows: Path) -> None:
    """Batches of two updates, killed after step 5 of 8, with the checkpoint of step 2 and perhaps that of step 4."""
    grpo = {"groupSize": 4, "updatesPerBatch": 2, "dynamicSampling": {"maxTries": 1}}
    whole, kept, gone = (tmp_path / name for name in ("whole", "kept", "gone"))
    for directory in (whole, kept, gone):
        directory.mkdir()
        changes = {"algorithm__grpo": grpo, "training__steps": 8, "checkpoint__everySteps": 2}
        job(directory, rows, SHARE_OF_LETTER_A, **changes)
    runs.run(whole / "run.yaml")
    runs.killed(kept / "run.yaml", 5)
    shutil.copytree(kept / "runs", gone / "runs")
    shutil.rmtree(gone / "runs" / "run" / run_directory.ROLLOUTS)
    errors = runs.run(kept / "run.yaml")
    taken = [step for step in range(1, 9) if f"step {step}: takes the samples" in errors]
    assert taken in ([5], [3, 5])
    assert "takes the samples" not in runs.run(gone / "run.yaml")
    for directory in (kept, gone):
        assert metrics(directory) == metrics(whole)
        assert samples(directory) == samples(whole)
        assert not list((directory / "runs" / "run" / run_directory.ROLLOUTS).glob("*")), "a checkpoint has all of them"


def test_rewards_that_hang_die_and_lie_cost_their_samples_and_nothing_else(tmp_path: Path, rows: Path) -> None:
    reward = (
        "import os, time\n"
        "def reward(prompt, completion, row):\n"
        "    case = int(row['answer']) % 8\n"
        "    if case == 0: time.sleep(100)\n"
        "    if case == 1: os._exit(1)\n"
        "    if case == 2: return 'good'\n"
        "    if case == 3: raise ValueError('no')\n"
        "    return float(len(completion) % 2)\n"
    )
    assert "samples have no reward" in runs.run(job(tmp_path, rows, reward, training__steps=2))
    assert all(0 < line["reward/missing"] < 1 for line in metrics(tmp_path))


def test_a_gold_answer_that_is_missing_is_named_before_anything_is_sampled(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1?", "completion": "1"}\n')
    words = ("rows.jsonl line 1: no gold answer", "hint: name the column in spec.data.train.columns.answer")
    runs.refused(job(tmp_path, rows, None), ExitCode.DATA_ERROR, *words)


def test_eight_devices_sample_and_learn_as_one_does(tmp_path: Path, rows: Path) -> None:
    one, eight = tmp_path / "one", tmp_path / "eight"
    for directory, accelerator in ((one, "cpu-1"), (eight, "cpu-8")):
        directory.mkdir()
        runs.run(job(directory, rows, SHARE_OF_LETTER_A, accelerator__type=accelerator, training__steps=3))
    texts = [
        [json.loads(line)["completion"] for line in samples(d)["step-00000001.jsonl"].splitlines()]
        for d in (one, eight)
    ]
    assert texts[0] == texts[1]
    for a, b in zip(metrics(one), metrics(eight), strict=True):
        assert a[run_directory.REWARD] == pytest.approx(b[run_directory.REWARD], abs=1e-6)
        assert a[run_directory.GRAD_NORM] == pytest.approx(b[run_directory.GRAD_NORM], rel=1e-3)


@pytest.mark.skipif(not GSM8K.exists(), reason="the GSM8K file is not here")
def test_gsm8k_itself_runs_three_steps_with_its_own_reward(tmp_path: Path) -> None:
    path = job(
        tmp_path, GSM8K, None, model__uri="random://small", training__steps=3, training__batchSize=16,
        training__sequenceLength=512, rollout__maxNewTokens=32,
    )  # fmt: skip
    runs.run(path)
    assert len(metrics(tmp_path)) == 3
    assert all(line["reward/gsm8k"] == line[run_directory.REWARD] for line in metrics(tmp_path))
    assert "#### " in "".join(json.loads(line)["answer"] for line in GSM8K.read_text().splitlines()[:5])


WORLD = """
class Environment:
    def reset(self, row):
        self.heard = 0
        return f"row {row['answer']}" if int(row["answer"]) % 2 else None
    def step(self, text):
        self.heard += 1
        return f"heard {len(text)}", text.count("a") / 8, self.heard == 2
"""


def test_episodes_of_several_turns_are_trained_on_the_tokens_that_were_sampled(tmp_path: Path, rows: Path) -> None:
    """Sampler and trainer agree about every token of every turn, so nothing was encoded twice or shifted."""
    (tmp_path / "world.py").write_text(WORLD)
    environment = {"python": {"uri": f"file://{tmp_path}/world.py"}, "maxTurns": 3}
    path = job(
        tmp_path, rows, None, rewards=[], environment=environment, rollout__stop=list("abcdefghijklmpqr"),
        training__steps=1, training__batchSize=8, training__sequenceLength=96, tensorboard__enabled=True,
    )  # fmt: skip
    runs.run(path)
    for line in metrics(tmp_path):
        assert line["sampler/difference"] < 1e-6
        assert line["episodes/failed"] == 0.0
        assert 1.0 < line["episodes/turns"] <= 2.0
    table = [json.loads(line) for line in samples(tmp_path)["step-00000001.jsonl"].splitlines()]
    assert len(table) == 8
    assert any([turn["role"] for turn in row["turns"]][-3:] == ["assistant", "user", "assistant"] for row in table)
    for row in table:
        assert row["rewards"].keys() == {"environment"}
        assert row["tokens"] <= 12 * 2


def test_a_mixtures_experts_are_replayed_behind_the_weights_and_after_a_kill(tmp_path: Path, rows: Path) -> None:
    """Samples of several turns, of weights two steps old: other experts than the trainer's own, kept over a kill."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for directory in (whole, killed):
        directory.mkdir()
        (directory / "world.py").write_text(WORLD)
        job(
            directory, rows, SHARE_OF_LETTER_A, model__uri="random://tiny-moe", accelerator__type="cpu-2",
            environment={"python": {"uri": f"file://{directory}/world.py"}, "maxTurns": 2},
            rollout__placement="disaggregated", rollout__maxStaleness=2, rollout__routingReplay=True,
            algorithm__grpo__updatesPerBatch=2, training__sequenceLength=96, training__steps=5,
        )  # fmt: skip
    runs.run(whole / "run.yaml")
    assert all(0.0 <= line["routing/changed"] < 0.5 for line in metrics(whole))
    assert metrics(whole)[-1]["routing/changed"] > 0.0
    runs.killed_and_resumed(killed / "run.yaml", 3)
    assert metrics(killed) == metrics(whole)
    assert samples(killed) == samples(whole)


def test_a_model_without_experts_has_no_routing_to_replay(tmp_path: Path, rows: Path) -> None:
    words = ("spec.rollout.routingReplay: true: llama has no experts to choose", "accepted: false")
    path = job(tmp_path, rows, SHARE_OF_LETTER_A, rollout__routingReplay=True)
    runs.refused(path, ExitCode.CONFIG_ERROR, *words)
