"""GRPO with vLLM as its engine, by real, small runs against a stand-in for its server: the curve is the native one's,
also where the server goes away half-way."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.builders.trainer import runs
from tests.builders.vllm.fake import Brain, FakeServer, known_seeds

from ptapi import run_directory
from ptapi.failures import ExitCode
from pttrainer.models import Model, preset

STEPS, PROMPTS = 2, 4


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    """It begins with other weights than the job's: the first renewal must reach it."""
    model = Model(preset("tiny"))
    made = FakeServer(Brain(model, jax.jit(model.init)(jax.random.key(9)), known_seeds(0, STEPS, PROMPTS)))
    yield made
    made.close()


def job(home: Path, name: str, rollout: dict[str, Any], steps: int = STEPS) -> Path:
    runs.write_rows(home / "train.jsonl", runs.NUMBERS)
    return runs.job(
        home,
        name,
        algorithm={"sft": None, "grpo": {"groupSize": 4}},
        rewards=runs.own_reward(home, runs.SHARE_OF_LETTER_A, 5),
        training={"steps": steps, "batchSize": 16, "sequenceLength": 48, "optimizer": {"learningRate": 1e-2}},
        rollout={"maxNewTokens": 12, **rollout},
        checkpoint={"everySteps": 1},
        export={"format": "none"},
        tensorboard={"enabled": False},
    )


def test_the_curve_through_a_server_is_the_native_one_until_the_server_is_lost(
    tmp_path: Path, fake: FakeServer
) -> None:
    runs.run(job(tmp_path, "native", {}))
    vllm = {"endpoint": fake.url, "weightsDirectory": f"{tmp_path}/weights", "retries": 0, "tolerance": 1e-4}
    path = job(tmp_path, "vllm", {"engine": "vllm", "vllm": vllm}, STEPS + 1)
    fake.trouble = lambda path, calls: (
        503 if len(fake.bodies("/collective_rpc")) == 3 and "completions" in path else None
    )
    [process] = runs.start(path)
    errors = process.communicate(timeout=900)[1]

    assert process.returncode == ExitCode.SERVICE_LOST, errors
    assert "log-probs match the trainer's within" in errors
    assert "Traceback" not in errors
    ended = runs.termination(tmp_path / "runs" / "vllm")
    assert (ended.failure_class, ended.step) == ("ServiceLost", 2)
    native, through = (runs.lines(tmp_path / "runs" / name) for name in ("native", "vllm"))
    assert [line["step"] for line in through] == [1, 2]
    for name in ("loss", "grad_norm", run_directory.REWARD, "completion_length", "entropy"):
        wanted = [line[name] for line in native]
        np.testing.assert_allclose([line[name] for line in through], wanted, rtol=1e-4, atol=1e-6, err_msg=name)
    assert max(line["sampler/difference"] for line in through) < 1e-4
    assert all(line["seconds/sync"] > 0 for line in through)
