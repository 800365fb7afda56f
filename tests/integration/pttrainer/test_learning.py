"""Real, small runs that cannot learn end as failed: with class, cause and the good checkpoint, and no export."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.builders.peers.models import CASES, tensors
from tests.builders.trainer import runs

from ptapi import run_directory
from ptapi.failures import ExitCode

OWN = "def reward(prompt, completion, row):\n    "
BY_STEP = "step = 1 + sum(1 for _ in open({calls!r})) // 4\n    open({calls!r}, 'a').write('x\\n')\n    "
"""Which step it is: a step has 4 samples, and each call writes a line."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.write_rows(tmp_path_factory.mktemp("data") / "train.jsonl", runs.NUMBERS)


def job(home: Path, rows: Path, source: str, **spec: Any) -> Path:
    """A job with a reward of this source."""
    common = {
        "algorithm": {"sft": None, "grpo": {"groupSize": 2}},
        "data": {"train": {"uri": f"file://{rows}"}},
        "rewards": runs.own_reward(home, source),
        "training": {"steps": 4, "batchSize": 4, "sequenceLength": 48, "optimizer": {"learningRate": 1e-2}},
        "rollout": {"maxNewTokens": 12},
        "checkpoint": {"everySteps": 1, "keep": 2},
        "tensorboard": {"enabled": False},
    }
    return runs.job(home, "run", common, spec)


def failed(path: Path, code: ExitCode, processes: int = 1) -> run_directory.Termination:
    """Runs to an end with this exit code and without an export; what it left for the operator."""
    ends = [runs.end(process) for process in runs.start(path, processes)]
    assert [status for status, _ in ends] == [code] * processes, ends
    assert all("Traceback" not in errors for _, errors in ends)
    left = path.parent / "runs" / path.stem
    assert not (left / run_directory.EXPORT).exists()
    return runs.termination(left)


def test_a_reward_that_kills_its_process_on_every_sample_ends_a_run_that_goes_on_counting_when_killed(
    tmp_path: Path, rows: Path
) -> None:
    source = f"import os, signal\n{OWN}os.kill(os.getpid(), signal.SIGKILL)\n"
    path = job(tmp_path, rows, source, training={"steps": 50, "maxFailedSteps": 4})
    runs.killed(path, 3)
    termination = failed(path, ExitCode.USER_CODE)
    assert (termination.failure_class, termination.step) == ("UserCode", 4)
    for words in (
        "spec.training.maxFailedSteps: 4: 4 steps in a row could not learn, the last of them step 4; ",
        "4 of them for this reason: reward own: 16 of 16 samples have no reward, ",
        "the last: its process died (SIGKILL); ",
        "last good checkpoint: none, no step learned; nothing is exported; hint: ",
    ):
        assert words in termination.message
    assert [line["failed_steps"] for line in runs.metrics(tmp_path / "runs" / "run")] == [1, 2, 3, 4]


def test_rewards_that_all_hang_are_waited_for_so_long_and_no_longer_by_two_processes(
    tmp_path: Path, rows: Path
) -> None:
    path = job(
        tmp_path, rows, f"import time\n{OWN}time.sleep(1e6)\n",
        training={"steps": 2, "minLearningShare": 0.0}, accelerator={"type": "cpu-1", "slices": 2},
    )  # fmt: skip
    path.write_text(path.read_text().replace("timeoutSeconds: 1", "timeoutSeconds: 0.2"))
    began = time.monotonic()
    termination = failed(path, ExitCode.USER_CODE, processes=2)
    assert time.monotonic() - began < 60
    assert (
        "spec.training.minLearningShare: 0: 2 of 2 steps could not learn; 2 of them for this reason: "
        in termination.message
    )
    assert "reward own: 8 of 8 samples have no reward, the last: no answer within 0.2 s; " in termination.message


@pytest.mark.parametrize(("bad", "is_well"), [(2, True), (3, False)])
def test_half_of_the_steps_may_fail_and_no_more(tmp_path: Path, rows: Path, bad: int, is_well: bool) -> None:
    """The last steps fail; the checkpoint of before them stays, and is named."""
    source = (
        "import os\n" + OWN + BY_STEP.format(calls=str(tmp_path / "calls"))
        + f"if step > {4 - bad}: raise ValueError('no')\n    return float(sum(completion.encode()) % 97)\n"
    )  # fmt: skip
    (tmp_path / "calls").touch()
    path = job(tmp_path, rows, source)
    home = tmp_path / "runs" / "run"
    if is_well:
        assert "could not learn" in runs.run(path)
        assert [line["failed_steps"] for line in runs.metrics(home)] == [0, 0, 1, 2]
        assert (home / run_directory.EXPORT).exists()
        return
    termination = failed(path, ExitCode.USER_CODE)
    assert (
        "spec.training.minLearningShare: 0.5: 3 of 4 steps could not learn; 3 of them for this reason: "
        in termination.message
    )
    assert "samples have no reward, the last: raised ValueError: no" in termination.message
    assert f"last good checkpoint: file://{home}/checkpoints/1; " in termination.message
    assert sorted(int(place.name) for place in (home / run_directory.CHECKPOINTS).iterdir()) == [1, 3, 4]


def test_rewards_that_are_all_equal_are_no_failure(tmp_path: Path, rows: Path) -> None:
    path = job(tmp_path, rows, f"{OWN}return 0.0\n", training={"steps": 6})
    assert "could not learn" not in runs.run(path)
    assert (tmp_path / "runs" / "run" / run_directory.EXPORT).exists()


def sft(home: Path, name: str, **spec: Any) -> Path:
    runs.write_rows(home / "train.jsonl", runs.SUMS[:16])
    training = {"steps": 3, "batchSize": 4, "sequenceLength": 64, "optimizer": {}}
    return runs.job(home, name, {"training": training, "checkpoint": {"everySteps": 1}}, spec)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (
            np.nan,
            "3 of 3 steps could not learn; 3 of them for this reason: training: loss and grad_norm are not finite",
        ),
        (0.0, "training: no step learned: the gradient was 0 in all 3 steps"),
    ],
)
def test_weights_that_are_not_finite_or_all_0_fail_a_run_shorter_than_any_limit(
    tmp_path: Path, value: float, says: str
) -> None:
    raw = {**CASES["llama-3.0"], "vocab_size": 264, "bos_token_id": 256, "eos_token_id": 257}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(raw))
    broken = {name: np.full_like(x, value) for name, x in tensors(raw).items()}
    save_file(broken, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    model = {"uri": f"file://{tmp_path}/model", "tokenizer": "random://bytes"}
    termination = failed(sft(tmp_path, "broken", model=model), ExitCode.CONFIG_ERROR)
    assert says in termination.message
    assert "last good checkpoint: none, no step learned" in termination.message


def test_updates_too_small_for_the_format_of_the_weights_fail_the_run(tmp_path: Path) -> None:
    training = {"precision": {"params": "bfloat16"}, "optimizer": {"learningRate": 1e-12}}
    termination = failed(
        sft(tmp_path, "small", model={"uri": "random://tiny"}, training=training), ExitCode.CONFIG_ERROR
    )
    assert "training: no weight changed: 3 of 3 steps had a gradient" in termination.message


def test_a_run_of_which_most_samples_have_no_reward_ends_at_a_checkpoint_and_a_restart_looks_anew(
    tmp_path: Path, rows: Path
) -> None:
    source = f"{OWN}assert int(row['answer']) % 3 == 0, 'away'\n    return completion.count('a') / 12\n"
    path = job(
        tmp_path, rows, source, checkpoint={"everySteps": 100},
        training={"steps": 50, "batchSize": 16, "circuitBreaker": {"samples": 32}},
    )  # fmt: skip
    for step in (2, 4):
        termination = failed(path, ExitCode.USER_CODE)
        assert (termination.failure_class, termination.step) == ("UserCode", step)
        assert "spec.training.circuitBreaker.maxMissing: 0.5: " in termination.message
        assert f" of the last 32 samples have no reward at step {step}, " in termination.message
        assert f"last good checkpoint: file://{tmp_path}/runs/run/checkpoints/{step}; nothing" in termination.message
