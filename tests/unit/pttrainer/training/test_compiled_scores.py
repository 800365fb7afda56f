"""What an algorithm computes besides the step is compiled before it is needed, and is the same to the bit."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from tests.builders.trainer import runs

from ptapi.load import load_job
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.io import storage
from pttrainer.runtime.reporting.termination import Attempt, StopRequest
from pttrainer.training import compiled_steps, loop

PAIR = {"prompt": "1?", "chosen": "yes", "rejected": "no"}
LONG = {**PAIR, "prompt": "What is 1? " * 8}


@pytest.fixture
def compiled_here() -> Iterator[list[str]]:
    """The programs that this thread compiled, while nothing trained; none was before the test."""
    jax.clear_caches()
    names, here = [], threading.get_ident()

    def record(event: str, seconds: float, **facts: Any) -> None:
        if event.endswith("backend_compile_duration") and threading.get_ident() == here:
            names.append(str(facts["fun_name"]))

    jax.monitoring.register_event_duration_secs_listener(record)
    yield names
    jax.monitoring.unregister_event_duration_listener(record)


def trained(home: Path, name: str, algorithm: dict[str, Any], *, at_start: bool) -> list[dict[str, Any]]:
    """The figures of two steps on long rows, evaluated on five short ones."""
    for part, row, count in (("train", LONG, 16), ("eval", PAIR, 5)):
        runs.write_rows(home / f"{part}.jsonl", [row] * count)
    path = runs.job(
        home,
        name,
        algorithm={"sft": None, **algorithm},
        data={"eval": {"uri": f"file://{home}/eval.jsonl"}},
        training={"steps": 2, "batchSize": 8, "sequenceLength": 128},
        evaluation={"atStart": at_start},
        checkpoint={"everySteps": 100},
        export={"format": "none"},
        tensorboard={"enabled": False},
        accelerator={"type": "cpu-8"},
    )
    attempt, run = Attempt(), home / "runs" / name
    with jax.set_mesh(sharding.make_mesh((8,))):  # put back afterwards
        loop.train(load_job(path.read_text()), storage.place(f"file://{run}"), attempt, StopRequest())
    attempt.release()
    return runs.metrics(run)


@pytest.mark.parametrize("at_start", [True, False])
@pytest.mark.parametrize(
    ("algorithm", "program", "count"),
    [
        ({"dpo": {}}, "jit(score)", 3),
        ({"kto": {}}, "jit(score)", 3),
    ],
    ids=["dpo", "kto"],
)
def test_nothing_waits_for_what_is_scored_besides_the_step(
    tmp_path: Path,
    algorithm: dict[str, Any],
    program: str,
    count: int,
    at_start: bool,
    compiled_here: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    early = trained(tmp_path, "early", algorithm, at_start=at_start)
    assert "eval/loss" in early[-1]
    assert program not in compiled_here
    monkeypatch.setattr(compiled_steps, "is_possible", lambda: False)
    jax.clear_caches()
    assert trained(tmp_path, "late", algorithm, at_start=at_start) == early
    assert compiled_here.count(program) == count
