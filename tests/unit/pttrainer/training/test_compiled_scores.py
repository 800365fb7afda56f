"""What an algorithm computes besides the step is compiled before it is needed, and is the same to the bit."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from tests.builders.trainer import runs

from ptapi.load import load_job
from pttrainer.data.preferences.pairs import answers_batch
from pttrainer.data.sft_examples import Example
from pttrainer.models import Model, preset
from pttrainer.models.decoding import block_head
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.io import storage
from pttrainer.runtime.reporting.termination import Attempt, StopRequest
from pttrainer.train_step import critic
from pttrainer.training import compiled_steps, loop
from pttrainer.training.compiled_scores import ScoringPass

REWARD = "def reward(prompt, completion, row):\n    return sum(completion.encode()) % 11 / 10\n"
PAIR = {"chosen": "yes", "rejected": "no"}
ANSWERS = {"distill": {"completion": "yes"}, "ppo": {"answer": "yes"}}


class Compiled(NamedTuple):
    """Names of programs in the order in which they were compiled: by this thread, while nothing trained, and others."""

    here: list[str]
    elsewhere: list[str]


@pytest.fixture
def compiled() -> Iterator[Compiled]:
    """What is compiled; nothing was before the test."""
    jax.clear_caches()
    names, here = Compiled([], []), threading.get_ident()

    def record(event: str, seconds: float, **facts: Any) -> None:
        if event.endswith("backend_compile_duration"):
            of_thread = names.here if threading.get_ident() == here else names.elsewhere
            of_thread.append(str(facts["fun_name"]))

    jax.monitoring.register_event_duration_secs_listener(record)
    yield names
    jax.monitoring.unregister_event_duration_listener(record)


def trained(home: Path, name: str, algorithm: dict[str, Any], *, at_start: bool) -> list[dict[str, Any]]:
    """The figures of two steps on long rows, evaluated on five short ones."""
    kind = next(iter(algorithm))
    for part, prompt, count in (("train", "What is 1? " * 8, 16), ("eval", "1?", 5)):
        runs.write_rows(home / f"{part}.jsonl", [{"prompt": prompt, **ANSWERS.get(kind, PAIR)}] * count)
    path = runs.job(
        home,
        name,
        {"rewards": runs.own_reward(home, REWARD), "rollout": {"maxNewTokens": 4}} if kind == "ppo" else {},
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


@pytest.mark.parametrize(
    ("algorithm", "at_start", "program", "count"),
    [
        ({"dpo": {}}, True, "jit(score)", 3),
        ({"dpo": {}}, False, "jit(score)", 3),
        ({"kto": {}}, True, "jit(score)", 3),
        ({"reward": {}}, True, "jit(values)", 1),
        ({"reward": {}}, False, "jit(values)", 1),
        ({"distill": {"mode": "online", "teacher": {"uri": "random://tiny"}}}, True, "jit(_compare)", 1),
        ({"ppo": {}}, False, "jit(values)", 1),
    ],
    ids=["dpo", "dpo evaluated later", "kto", "reward", "reward evaluated later", "distill", "ppo"],
)
def test_nothing_waits_for_what_is_computed_besides_the_step(
    tmp_path: Path,
    algorithm: dict[str, Any],
    at_start: bool,
    program: str,
    count: int,
    compiled: Compiled,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    early = trained(tmp_path, "early", algorithm, at_start=at_start)
    assert any(name.startswith("eval/") for name in early[-1])
    assert program not in compiled.here
    is_first = at_start or "reward" not in algorithm
    assert (compiled.elsewhere.index(program) < compiled.elsewhere.index("jit(step)")) == is_first
    monkeypatch.setattr(compiled_steps, "is_possible", lambda: False)
    jax.clear_caches()
    assert trained(tmp_path, "late", algorithm, at_start=at_start) == early
    assert compiled.here.count(program) == count


def test_a_scoring_pass_takes_the_models_weights_out_of_all_that_are_trained(compiled: Compiled) -> None:
    model, mesh = Model(preset("tiny")), sharding.make_mesh((1,), jax.devices()[:1])
    where = sharding.weight_shardings(mesh, model.abstract(), model.logical_axes())
    params = jax.jit(model.init, out_shardings=where)(jax.random.key(1))
    batch = answers_batch([Example(np.arange(8), np.ones(8, bool))], 16)
    with jax.set_mesh(mesh):
        scores = ScoringPass(model, mesh)
        function, arguments = scores.call(params, batch, 1.0)
        function.expect(mesh, arguments, None)
        scores({**params, block_head.KEY: params, critic.KEY: params}, batch, 1.0)
    assert "jit(score)" not in compiled.here
