"""Safety nets in real runs: steps that are not finite are skipped alike before and after a kill, and end a run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.builders.peers.models import CASES, tensors
from tests.builders.trainer import runs
from tests.builders.trainer.runs import end, killed_and_resumed, metrics, run, start

from ptapi import run_directory
from ptapi.failures import ExitCode

STEPS = 16


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose embedding of the byte `Z` is broken, and data with and without it."""
    directory = tmp_path_factory.mktemp("safety")
    raw = {**CASES["llama-3.0"], "vocab_size": 264, "bos_token_id": 256, "eos_token_id": 257}
    weights = {name: 0.3 * x if x.ndim == 2 else x for name, x in tensors(raw).items()}
    weights["model.embed_tokens.weight"][ord("Z")] = np.nan
    (directory / "model").mkdir()
    (directory / "model" / "config.json").write_text(json.dumps(raw))
    save_file(weights, directory / "model" / "model.safetensors", {"format": "pt"})
    sums = [(a, b) for a in range(12) for b in range(10)]
    for name, marked in {"some": 9, "all": 1}.items():
        rows = [{"question": f"{a} plus {b}" + "Z" * (i % marked == 0), "answer": f"{a + b}"}
                for i, (a, b) in enumerate(sums)]  # fmt: skip
        runs.write_rows(directory / f"{name}.jsonl", rows)
    return directory


def job(home: Path, name: str, data: str, model: str = "", slices: int = 1, **training: Any) -> Path:
    return runs.job(
        home,
        name,
        model={"uri": model or f"file://{home}/model", "tokenizer": "random://bytes"},
        algorithm={"sft": {"packing": False}},
        data={"train": {"uri": f"file://{home}/{data}.jsonl"}},
        training={"steps": STEPS, "batchSize": 4, "optimizer": {"learningRate": 1e-3}, **training},
        checkpoint={"everySteps": 1},
        accelerator={"type": "cpu-1", "slices": slices},
    )


def test_broken_rows_are_skipped_and_a_killed_run_skips_the_same(home: Path) -> None:
    err = run(job(home, "whole", "some"))
    whole = metrics(home / "runs" / "whole")
    bad = [line["step"] for line in whole if line["loss"] is None]
    assert 2 <= len(bad) < STEPS - 2
    assert whole[-1]["skipped_steps"] == len(bad)
    assert next(line for line in err.splitlines() if "not finite" in line).startswith(f"warning: step {bad[0]}: loss")
    assert runs.progress(home / "runs" / "whole").metrics["skipped_steps"] == len(bad)

    killed_and_resumed(job(home, "killed", "some"), max(bad[1], 3))
    assert metrics(home / "runs" / "killed") == whole
    assert runs.exported(home / "runs" / "killed") == runs.exported(home / "runs" / "whole")


def test_too_many_in_a_row_end_the_run_keep_the_batch_and_say_what_to_try(home: Path) -> None:
    runs.refused(job(home, "hopeless", "all", maxNonFiniteSteps=3), ExitCode.CONFIG_ERROR)
    left = home / "runs" / "hopeless"
    termination = runs.termination(left)
    assert termination.failure_class == "ConfigError"
    assert "loss and grad_norm are not finite in 3 steps in a row" in termination.message
    assert f"file://{left}/{run_directory.batch_file(3)}" in termination.message
    rows = [json.loads(line) for line in (left / run_directory.batch_file(3)).read_text().splitlines()]
    assert len(rows) == 4
    assert all("Z" in text for row in rows for text in row["text"])
    assert ord("Z") in rows[0]["tokens"]


def test_two_processes_skip_and_stop_alike(home: Path) -> None:
    """At this rate and decay weights grow a hundredfold a step, until their squares are beyond float32."""
    explosive = {"optimizer": {"learningRate": 10.0, "weightDecay": 10.0}, "schedule": {"kind": "constant"}}
    path = job(home, "two", "some", "random://tiny", 2, maxNonFiniteSteps=2, **explosive)
    ends = [end(process) for process in start(path, processes=2)]
    assert [code for code, _ in ends] == [ExitCode.CONFIG_ERROR] * 2, ends
    for _, err in ends:
        assert "not finite in 2 steps in a row" in err
    (file,) = (home / "runs" / "two" / run_directory.NON_FINITE).iterdir()
    assert len(file.read_text().splitlines()) == 4
