"""Algorithms on fewer slices than their job has: the losses of all of them, from the start and from a checkpoint."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.builders.trainer import runs

from ptapi import run_directory
from ptapi.run_directory import Generation
from pttrainer.runtime.distributed import processes

STEPS, UPDATES = 5, 4
TOLERANCE = 1e-4
"""As of other changes of the mesh (`test_layouts`)."""
PAIRS = [{"prompt": f"{i}?", "chosen": "yes", "rejected": "no"} for i in range(20)]
GRPO = {"grpo": {"groupSize": 2, "updatesPerBatch": UPDATES, "beta": 0.05}}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    runs.write_rows(tmp_path / "pairs.jsonl", PAIRS)
    runs.write_rows(tmp_path / "prompts.jsonl", runs.NUMBERS)
    return tmp_path


def job(home: Path, name: str, algorithm: dict[str, Any], slices: int) -> Path:
    """One device for each slice; on its own, for the whole job."""
    accelerator = {"type": "cpu-1", **({"slices": slices, "minSlices": 1} if slices > 1 else {})}
    is_sampled = "grpo" in algorithm
    data = f"file://{home}/{'prompts' if is_sampled else 'pairs'}.jsonl"
    parts: dict[str, Any] = {
        "algorithm": {"sft": None, **algorithm},
        "data": {"train": {"uri": data}},
        "training": {"steps": STEPS, "batchSize": 8, "sequenceLength": 48, "optimizer": {"learningRate": 1e-2}},
        "rollout": {"maxNewTokens": 8},
        "checkpoint": {"everySteps": 1},
        "accelerator": accelerator,
        "export": {"format": "none"},
        "tensorboard": {"enabled": False},
    }
    if is_sampled:
        parts["rewards"] = runs.own_reward(home, runs.SHARE_OF_LETTER_A)
    return runs.job(home, name, parts)


def generation(home: Path, name: str, number: int, slices: list[int]) -> dict[str, str]:
    """What a supervisor leaves for the trainer: which slices train, and the number of the generation."""
    directory = home / "runs" / name
    directory.mkdir(parents=True, exist_ok=True)
    written = Generation(number=number, slices=slices).model_dump_json(by_alias=True)
    (directory / run_directory.GENERATION).write_text(written)
    return {processes.GENERATION: str(number)}


def end(process: runs.Attempt) -> str:
    code, errors = runs.end(process)
    assert code == 0, errors
    return errors


def test_pairs_on_half_of_the_slices_have_the_losses_of_all(home: Path) -> None:
    runs.run(job(home, "all", {"dpo": {}}, 1))
    path, env = job(home, "half", {"dpo": {}}, 2), generation(home, "half", 1, [1])
    assert "1 of 2 slices: micro-batches of 4 rows, the same batch" in end(runs.command("run", str(path), env=env))
    assert runs.losses(home / "runs" / "half") == pytest.approx(runs.losses(home / "runs" / "all"), rel=TOLERANCE)


def test_samples_are_the_same_on_fewer_slices_which_take_over_a_batch_between_two_updates(home: Path) -> None:
    runs.run(job(home, "all", GRPO, 1))
    path, env = job(home, "lost", GRPO, 2), generation(home, "lost", 1, [0, 1])
    held = env | runs.gate(4, home / "never")  # each checkpoint until then holds the batch, for its next update
    both = runs.start(path, 2, held, runs.HELD)
    try:
        runs.reached(both[0], 3)
    finally:
        for process in both:
            process.kill()
            process.communicate()
    errors = end(runs.command("run", str(path), env=generation(home, "lost", 2, [1])))
    assert "resuming after step" in errors
    whole, lost = home / "runs" / "all", home / "runs" / "lost"
    assert runs.losses(lost) == pytest.approx(runs.losses(whole), rel=TOLERANCE, abs=1e-6)
    for name in (f"step-{step:08}.jsonl" for step in range(1, STEPS + 1, UPDATES)):
        texts = [
            [json.loads(line)["completion"] for line in (run / run_directory.SAMPLES / name).read_text().splitlines()]
            for run in (whole, lost)
        ]
        assert texts[0] == texts[1]
