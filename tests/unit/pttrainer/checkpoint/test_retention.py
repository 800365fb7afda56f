"""When checkpoints are written, which stay, and runs that begin from another run's."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ptapi import run_directory
from ptapi.spec import Checkpoint, Fork
from pttrainer.checkpoint import fork
from pttrainer.checkpoint.retention import CheckpointPolicy
from pttrainer.checkpoint.store import Checkpoints
from pttrainer.errors import ConfigError
from pttrainer.runtime.io.directory import Directory
from pttrainer.train_step.state import TrainState

BEST = {"everySteps": 100, "keep": 1, "best": {"keep": 2}}


def saving(tmp_path: Path, **spec: Any) -> CheckpointPolicy:
    return CheckpointPolicy(Checkpoint.model_validate(spec), Directory(tmp_path), leader=True)


def test_saves_fall_on_every_nth_step_and_on_the_last() -> None:
    plan = saving(Path("/nowhere"), everySteps=4)
    assert [step for step in range(1, 11) if plan.is_due(step, 10, {})] == [4, 8, 10]


def test_a_save_is_due_when_the_time_since_the_last_one_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("pttrainer.checkpoint.retention.time", SimpleNamespace(monotonic=lambda: clock[0]))
    plan = saving(Path("/nowhere"), everySteps=1000, everySeconds=60)
    due = []
    for step in range(1, 11):
        clock[0] += 25.0
        if plan.is_due(step, 100, {}):
            due.append(step)
            plan.began()
    assert due == [3, 6, 9]


def test_evaluations_among_the_best_are_saved_and_stay(tmp_path: Path) -> None:
    plan = saving(tmp_path, **BEST)
    values = {10: 3.0, 20: 2.0, 30: 2.5, 40: 2.6, 50: float("nan"), 60: 2.0, 70: 1.0}
    assert [step for step, value in values.items() if plan.is_due(step, 99, {"eval/loss": value})] == [
        10, 20, 30, 60, 70,
    ]  # fmt: skip
    assert plan.stays([10, 20, 30, 60, 70, 80]) == [False, True, False, False, True, True]
    written = run_directory.Best.model_validate_json((tmp_path / run_directory.BEST).read_text())
    assert [(entry.step, entry.value) for entry in written.checkpoints] == [(70, 1.0), (20, 2.0)]


def test_the_newest_checkpoint_of_before_steps_that_cannot_learn_stays(tmp_path: Path) -> None:
    plan = saving(tmp_path, everySteps=1, keep=2)
    steps = [2, 4, 6, 8]
    assert plan.stays(steps) == [False, False, True, True]  # none could learn
    plan.good = 5
    assert plan.stays(steps) == [False, True, True, True]
    plan.good = 8
    assert plan.stays(steps) == [False, False, True, True]


def test_the_larger_value_is_better_where_the_job_says_so(tmp_path: Path) -> None:
    plan = saving(tmp_path, everySteps=100, best={"metric": "eval/reward", "mode": "max"})
    assert [plan.is_due(step, 99, {"eval/reward": v}) for step, v in ((1, 0.2), (2, 0.1), (3, 0.3))] == [
        True, False, True,
    ]  # fmt: skip
    assert plan.best.step == 3


def test_a_best_checkpoint_that_a_kill_prevented_is_forgotten(tmp_path: Path) -> None:
    plan = saving(tmp_path, **BEST)
    for step, value in ((10, 3.0), (20, 2.0)):
        plan.is_due(step, 99, {"eval/loss": value})
    again = saving(tmp_path, **BEST)
    again.resumed([10], 10)  # 20 was listed and never committed
    assert again.best.step == 10
    assert again.is_due(20, 99, {"eval/loss": 2.5})


def test_values_of_another_metric_are_not_compared_with_those_of_a_run_that_goes_on(tmp_path: Path) -> None:
    assert saving(tmp_path, **BEST).is_due(10, 99, {"eval/loss": 0.1})
    again = saving(tmp_path, best={"metric": "eval/perplexity"})
    assert again.is_due(11, 99, {"eval/loss": 0.2, "eval/perplexity": 1.2})
    assert (
        run_directory.Best.model_validate_json((tmp_path / run_directory.BEST).read_text()).metric == "eval/perplexity"
    )


def test_a_metric_that_no_evaluation_has_is_named_with_those_there_are(tmp_path: Path) -> None:
    plan = saving(tmp_path, best={"metric": "eval/f1"})
    with pytest.raises(ConfigError, match=r"best.metric: eval/f1: .*accepted: eval/loss, eval/perplexity"):
        plan.is_due(1, 9, {"eval/perplexity": 2.0, "eval/loss": 1.0})


def test_every_kth_checkpoint_stays_for_ever(tmp_path: Path) -> None:
    plan = saving(tmp_path / "run", everySteps=1, keep=1, keepEverySteps=3)
    checkpoints = Checkpoints(tmp_path / "checkpoints", plan, print)
    for step in range(1, 8):
        checkpoints.save(step, adamw(step), {})
    checkpoints.wait()
    checkpoints.close()
    assert sorted(int(p.name) for p in (tmp_path / "checkpoints").iterdir() if p.name.isdigit()) == [3, 6, 7]


def adamw(seed: int, rank: int = 4, optimizer: Any = None) -> TrainState:
    weights = {"q_lora": {"a": jax.random.normal(jax.random.key(seed), (8, rank)), "b": jnp.ones((rank, 8))}}
    return TrainState(weights, (optimizer or optax.adamw(1e-3)).init(weights), jnp.int32(seed), jnp.zeros(2, jnp.int32))


def like(state: TrainState) -> TrainState:
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    made: TrainState = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), state)
    return made


@pytest.fixture
def run(tmp_path: Path) -> str:
    """A run directory with checkpoints of steps 3 and 7."""
    checkpoints = Checkpoints(tmp_path / "run" / run_directory.CHECKPOINTS, 5, print)
    for step in (3, 7):
        checkpoints.save(step, adamw(step), {"cursor": step})
    checkpoints.wait()
    checkpoints.close()
    return f"file://{tmp_path}/run"


def test_a_fork_takes_over_everything_or_the_weights_alone(run: str) -> None:
    newest = fork.find_source(Fork(uri=run), None)
    assert newest.uri == f"{run}/checkpoints/7"
    taken = fork.restore_full(newest, like(adamw(0)), {"cursor"})
    assert (taken.step, taken.algorithm) == (7, {"cursor": 7})
    jax.tree.map(np.testing.assert_array_equal, taken.state, adamw(7))
    weights = fork.restore_weights(fork.find_source(Fork(uri=f"{run}/checkpoints/3"), None), like(adamw(0)))
    jax.tree.map(np.testing.assert_array_equal, weights, adamw(3).params)


def test_an_attempt_after_the_first_forks_from_the_same_step(run: str) -> None:
    assert fork.find_source(Fork(uri=run), pinned=3).step == 3
    assert fork.find_source(Fork(uri=run), pinned=5).step == 7  # gone meanwhile


def test_a_fork_of_another_rank_or_optimizer_is_refused_by_name(run: str) -> None:
    newest = fork.find_source(Fork(uri=run), None)
    with pytest.raises(
        ConfigError, match=r"params.q_lora.a: float32\[8, 4\] there, float32\[8, 2\] here.*training.lora"
    ):
        fork.restore_weights(newest, like(adamw(0, rank=2)))
    with pytest.raises(ConfigError, match=r"optimizer\.\S+: .* there, absent here.*same training.optimizer, or state"):
        fork.restore_full(newest, like(adamw(0, optimizer=optax.sgd(1e-3, momentum=0.9))), {"cursor"})
    fork.restore_weights(newest, like(adamw(0, optimizer=optax.sgd(1e-3, momentum=0.9))))


def test_a_whole_fork_of_another_algorithm_is_refused_and_of_an_older_trainer_is_not(run: str) -> None:
    newest = fork.find_source(Fork(uri=run), None)
    with pytest.raises(ConfigError, match=r"another algorithm, with state cursor where this one .* batch, drawn; "):
        fork.restore_full(newest, like(adamw(0)), {"drawn", "batch"})
    assert fork.restore_full(newest, like(adamw(0)), {"cursor", "ahead"}).step == 7


def test_a_fork_from_nowhere_is_refused_with_the_steps_there_are(run: str) -> None:
    with pytest.raises(ConfigError, match=r"fork.uri: .*no such checkpoint in .*; accepted: 3, 7"):
        fork.find_source(Fork(uri=f"{run}/checkpoints/5"), None)
    with pytest.raises(ConfigError, match=r"fork.uri: .*there is none"):
        fork.find_source(Fork(uri=f"{run}-elsewhere"), None)
