"""GRPO runs with the real vLLM as their engine: beside a server, and with the package in the trainer's process."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.builders.trainer import runs
from tests.builders.vllm.real import RealServer

STEPS = 4
SHARE_OF_SMALL_LETTERS = """
def reward(prompt, completion, row):
    return sum(letter.islower() for letter in completion) / max(len(completion), 1)
"""


def job(home: Path, model: Path, vllm: dict[str, Any]) -> Path:
    runs.write_rows(home / "train.jsonl", runs.NUMBERS)
    return runs.job(
        home,
        "job",
        model={"uri": f"file://{model}"},
        algorithm={"sft": None, "grpo": {"groupSize": 4}},
        rewards=runs.own_reward(home, SHARE_OF_SMALL_LETTERS, 60),
        training={"steps": STEPS, "batchSize": 16, "sequenceLength": 48},
        rollout={"maxNewTokens": 12, "engine": "vllm", "vllm": {"tolerance": 1e-3, **vllm}},
        checkpoint={"everySteps": 1},
        export={"format": "none"},
        tensorboard={"enabled": False},
    )


def start(path: Path) -> subprocess.Popen[str]:
    """The trainer, as a person starts it."""
    command = [sys.executable, "-m", "pttrainer", "run", str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def assert_sampled_from_the_trainer_s_weights(home: Path) -> None:
    lines = runs.lines(home / "runs" / "job")
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert all(line["sampler/difference"] < 1e-4 for line in lines)
    assert all(line["seconds/sync"] > 0 for line in lines)
    assert all(line["grad_norm"] > 0 for line in lines)


def test_a_run_goes_on_after_its_server_was_killed_and_after_it_was_itself(server: RealServer, tmp_path: Path) -> None:
    vllm = {"endpoint": server.url, "weightsDirectory": f"{tmp_path}/weights", "timeoutSeconds": 1200}
    path = job(tmp_path, server.model, vllm)
    process = start(path)
    runs.reached(process, 1)
    server.kill()
    server.start()
    runs.reached(process, 3)
    process.kill()
    process.wait()
    process = start(path)
    errors = process.communicate()[1]
    assert process.returncode == 0, errors
    assert "resuming after step" in errors
    assert_sampled_from_the_trainer_s_weights(tmp_path)


def test_a_run_with_the_package_beside_the_trainer(
    server: RealServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    process = start(job(tmp_path, server.model, {"memoryShare": 0.05}))
    errors = process.communicate()[1]
    assert process.returncode == 0, errors
    assert_sampled_from_the_trainer_s_weights(tmp_path)
