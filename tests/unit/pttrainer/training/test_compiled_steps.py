"""The step that is compiled before its first batch is there: the same step, and nobody waits for it in vain."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache
from tests.builders.trainer import runs

from ptapi.failures import ExitCode
from ptapi.load import load_job
from pttrainer.rollout.evaluation.early_programs import EarlyPrograms
from pttrainer.runtime.background_compile import BackgroundCompile
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.io import storage
from pttrainer.runtime.reporting.termination import COMPILER, Attempt, StopRequest
from pttrainer.training import compiled_steps as programs
from pttrainer.training import loop

REWARD = "def reward(prompt, completion, row):\n    return sum(completion.encode()) % 11 / 10\n"
SAMPLER = {f"jit({name})" for name in ("part_for_decoding", "prefill", "spread", "advance")}
KINDS: dict[str, dict[str, Any]] = {
    "sft": {"sft": {}},
    "dpo": {"dpo": {}},
    "grpo": {"grpo": {"groupSize": 4, "beta": 0.1, "updatesPerBatch": 2}},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Data, a reward, and one cache of compiled steps for all runs, which jax has to be told to turn to and from."""
    directory = tmp_path_factory.mktemp("compiling")
    write_data(directory)
    before = jax.config.values["jax_compilation_cache_dir"]
    compilation_cache.reset_cache()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(directory / "xla"))
        yield directory
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


def write_data(home: Path) -> None:
    """Rows to learn from, pairs of them, and a reward."""
    (home / "rows.jsonl").write_text('{"prompt": "1?", "answer": "1"}\n' * 8)
    (home / "pairs.jsonl").write_text('{"prompt": "1?", "chosen": "yes", "rejected": "no"}\n' * 8)


def job(home: Path, kind: str, output: str, devices: int = 8, *, has_answers: bool = False) -> Path:
    """One step of the algorithm. output: a directory in `home`. has_answers: evaluations sample."""
    rewarded: dict[str, Any] = {"rewards": runs.own_reward(home, REWARD), "rollout": {"maxNewTokens": 4}}
    data = "pairs" if kind == "dpo" else "rows"
    held_out = {"eval": {"uri": f"file://{home}/{data}.jsonl", "limit": 3}} if kind == "sft" or has_answers else {}
    return runs.job(
        home,
        "run",
        rewarded if kind == "grpo" or has_answers else {},
        algorithm={"sft": None, **KINDS[kind]},
        data={"train": {"uri": f"file://{home}/{data}.jsonl"}, **held_out},
        training={"steps": 1, "sequenceLength": 16, "optimizer": {"learningRate": 1e-2}},
        checkpoint={"everySteps": 100},
        export={"format": "none"},
        tensorboard={"enabled": False},
        accelerator={"type": f"cpu-{devices}"},
        output={"uri": f"file://{home}/{output}"},
    )


def trained(home: Path, kind: str, output: str, devices: int = 8, *, has_answers: bool = False) -> list[dict[str, Any]]:
    """The figures of a run here."""
    path = job(home, kind, output, devices, has_answers=has_answers)
    attempt = Attempt()
    with jax.set_mesh(sharding.make_mesh((8,))):  # put back afterwards
        loop.train(load_job(path.read_text()), storage.place(f"file://{home}/{output}/run"), attempt, StopRequest())
    attempt.release()
    return runs.metrics(home / output / "run")


@pytest.fixture
def compiled_steps(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What runs were given when they asked for the step that was compiled early."""
    given: list[Any] = []
    compiled = BackgroundCompile.compiled
    monkeypatch.setattr(
        BackgroundCompile, "compiled", lambda *arguments: given.append(compiled(*arguments)) or given[-1]
    )
    return given


def test_the_pairs_that_are_foreseen_are_those_that_come(home: Path, compiled_steps: list[Any]) -> None:
    trained(home, "dpo", "pairs")
    assert len(compiled_steps) == 2, "the reference's log-probs, and the step"
    assert all(compiled is not None for compiled in compiled_steps)


def test_a_step_that_is_compiled_early_is_the_same_to_the_bit_and_found_by_later_runs(
    home: Path, compiled_steps: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    early, before = trained(home, "grpo", "early"), kept(home)
    monkeypatch.setattr(programs, "is_possible", lambda: False)
    assert trained(home, "grpo", "late") == early
    assert len(compiled_steps) == 3, "the reference's log-probs, the policy's, and the step"
    assert all(compiled is not None for compiled in compiled_steps)
    assert kept(home) == before != []


def kept(home: Path) -> list[str]:
    """Train steps in the cache of compiled programs."""
    return sorted(path.name for path in (home / "xla").glob("jit_step*-cache"))


def test_held_out_rows_are_scored_by_the_program_that_was_compiled_early(home: Path, compiled_steps: list[Any]) -> None:
    trained(home, "sft", "held-out")
    assert len(compiled_steps) == 3, "an evaluation before the step, the step, and an evaluation behind it"
    assert all(compiled is not None for compiled in compiled_steps)


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """What each evaluation compiled itself, if it began once all threads that compile had ended."""
    jax.clear_caches()
    compiled: list[list[str]] = []
    evaluate, here = loop._evaluate, threading.get_ident()

    def record(event: str, seconds: float, **facts: Any) -> None:
        if event.endswith("backend_compile_duration") and is_evaluating and threading.get_ident() == here:
            compiled[-1].append(str(facts["fun_name"]))

    def evaluated(*arguments: Any) -> dict[str, float]:
        for thread in threading.enumerate():
            if thread.name == COMPILER:
                thread.join()
        compiled.append([])
        is_evaluating.append(True)
        facts = evaluate(*arguments)
        is_evaluating.clear()
        return facts

    is_evaluating: list[bool] = []
    jax.monitoring.register_event_duration_secs_listener(record)
    monkeypatch.setattr(loop, "_evaluate", evaluated)
    yield compiled
    jax.monitoring.unregister_event_duration_listener(record)


@pytest.mark.parametrize(("kind", "devices"), [("sft", 8), ("dpo", 8), ("grpo", 8)])
def test_an_evaluation_compiles_nothing_to_sample_and_is_the_same_to_the_bit(
    home: Path, kind: str, devices: int, evaluations: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    early = trained(home, kind, f"{kind}-early", devices, has_answers=True)
    assert "eval/reward" in early[0]
    assert len(evaluations) == 2, "before the step, and behind it"
    assert all(SAMPLER.isdisjoint(names) for names in evaluations)
    if kind != "dpo":  # whose pairs are scored by a program that comes with them
        assert evaluations == [[], []]
    monkeypatch.setattr(programs, "is_possible", lambda: False)
    jax.clear_caches()
    assert trained(home, kind, f"{kind}-late", devices, has_answers=True) == early
    assert SAMPLER.issubset(evaluations[2])


def test_a_run_whose_evaluation_cannot_be_compiled_early_compiles_it_then(
    home: Path, evaluations: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> None:
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(EarlyPrograms, "_compiled", failing)
    assert "eval/reward" in trained(home, "sft", "uncompiled", has_answers=True)[0]
    assert SAMPLER.issubset(evaluations[0])


def test_a_run_that_is_stopped_does_not_wait_for_the_compiler(tmp_path: Path) -> None:
    write_data(tmp_path)
    path = job(tmp_path, "dpo", "runs", devices=1)
    code, errors = runs.end(runs.command("run", str(path), program="tests.builders.servers.endless"))
    assert code == ExitCode.PREEMPTED_SAVED, errors
    assert "stopped by SIGTERM at step 0" in runs.termination(tmp_path / "runs" / "run").message
