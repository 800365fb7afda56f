"""A step whose loss or gradient is not finite changes nothing, is counted, and too many of them end the run."""

import json
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.builders.trainer import steps as build

from ptapi.failures import ExitCode
from ptapi.spec import Optimizer, Training
from pttrainer.batch import Batch, Prompts
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.train_step import nonfinite
from pttrainer.train_step.optimizer import transformation, update_rules


def broken(value: float = float("nan")) -> Batch:
    """The batch with one weight that is not finite."""
    batch = build.batch()
    weight_BT = batch.weight_BT.copy()
    weight_BT[3, 2] = value
    return batch._replace(weight_BT=weight_BT)


def same(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_a_step_that_is_not_finite_changes_counters_and_nothing_else(value: float) -> None:
    run = build.steps(Training())
    run(build.batch())
    before = run.host()
    logged = run(broken(value))
    after = run.host()
    same(after.params, before.params)
    same(after.optimizer[1][0], before.optimizer[1][0])  # Adam's moments, and its own count
    assert not np.isfinite(logged["loss"]) or not np.isfinite(logged["grad_norm"])
    assert (int(after.step), after.skipped.tolist()) == (2, [1, 1])
    assert (logged["skipped_steps"], logged[nonfinite.IN_A_ROW]) == (1, 1)


def test_the_learning_rate_that_is_logged_after_a_skipped_step_is_the_one_that_acts() -> None:
    run = build.steps(Training(optimizer=Optimizer(weight_decay=0.0, beta1=0.0, beta2=0.0, eps=1e-12)))
    run(broken())
    before = run.host()
    logged = run(build.batch())
    moved = np.abs(run.host().params["layers"]["mlp"]["up"] - before.params["layers"]["mlp"]["up"]).max()
    assert moved == pytest.approx(logged["learning_rate"], rel=1e-4)  # Adam without memory: ± the rate


def test_good_steps_start_the_count_in_a_row_again() -> None:
    run = build.steps(Training())
    lines = [run(batch) for batch in (broken(), broken(), build.batch(), broken())]
    assert [line["skipped_steps"] for line in lines] == [1, 2, 2, 3]
    assert [line[nonfinite.IN_A_ROW] for line in lines] == [1, 2, 0, 1]


def test_eight_devices_skip_alike() -> None:
    run = build.steps(Training(), (2, 2, 2, 1))
    before = run.host()
    run(broken())
    same(run.host().params, before.params)
    assert run.host().skipped.tolist() == [1, 1]


PARAMS = {"w": jax.random.normal(jax.random.key(0), (33, 7))}
GRADS = {"w": jax.random.normal(jax.random.key(1), (33, 7))}


def updated(rule: Any, grads: Any, params: Any, state: Any, **extra: Any) -> Any:
    change, new = rule.update(grads, state, params, **extra)
    return optax.apply_updates(params, change), new


def guarded(rule: Any, grads: Any, params: Any, state: Any) -> Any:
    """An update of a step that is finite, as the train step does it."""
    is_finite = jnp.isfinite(grads["w"]).all()
    return nonfinite.choose(is_finite, updated(rule, grads, params, state, is_finite=is_finite), (params, state))


@pytest.mark.parametrize("name", ["adamw", "lion", "muon"])
def test_a_good_step_has_the_bits_of_the_optimizer_alone(name: str) -> None:
    """`choose` between finite trees is the update itself."""
    rule = transformation.build(Optimizer(name=name), optax.constant_schedule(1e-2), {"w": ("embed", "mlp")})
    alone = jax.jit(partial(updated, rule))(GRADS, PARAMS, rule.init(PARAMS))
    same(jax.jit(partial(guarded, rule))(GRADS, PARAMS, rule.init(PARAMS)), alone)


def test_adam_on_a_cpu_has_the_bits_of_optax_and_copies_no_moment() -> None:
    spec, rate = Optimizer(weight_decay=0.1), optax.constant_schedule(1e-2)
    beta1, beta2, eps = (x for x in update_rules.DEFAULTS["adamw"][:3] if x is not None)
    optaxs = optax.adamw(rate, beta1, beta2, eps, weight_decay=0.1)
    ours, optaxs = (
        transformation.build(spec, rate),
        optax.chain(optax.clip_by_global_norm(spec.max_grad_norm), optaxs),
    )
    states, copies = [], []
    for rule in (ours, optaxs):
        of_step = jax.jit(partial(guarded, rule), donate_argnums=(1, 2))
        run = jax.tree.map(jnp.array, (PARAMS, rule.init(PARAMS)))
        copies.append(of_step.lower(GRADS, *run).compile().as_text().count("f32[33,7]{1,0} copy("))
        for _ in range(3):
            run = of_step(GRADS, *run)
        states.append([leaf for leaf in jax.tree.leaves(run) if leaf.shape == PARAMS["w"].shape])
    assert copies == [0, 2]
    same(*states)


def test_the_warning_names_the_step_what_is_broken_and_when_the_run_stops() -> None:
    values = {"loss": float("nan"), "grad_norm": float("nan"), nonfinite.IN_A_ROW: 2.0}
    assert nonfinite.warning(7, values, 5).startswith("warning: step 7: loss and grad_norm are not finite; the step is")
    assert "(2 in a row, the run stops at 5)" in nonfinite.warning(7, values, 5)
    assert nonfinite.warning(7, {"loss": 1.0, "grad_norm": 1.0, nonfinite.IN_A_ROW: 0.0}, 5) == ""


def test_the_end_is_a_job_that_cannot_run_as_written_and_says_what_to_try() -> None:
    values = {"loss": 2.0, "grad_norm": float("inf"), nonfinite.IN_A_ROW: 3.0, "learning_rate": 1e-2}
    error = nonfinite.stop(12, values, "file:///runs/a/non-finite/step-00000012.jsonl", "file:///runs/a/checkpoints/9")
    assert error.exit_code == ExitCode.CONFIG_ERROR
    for words in (
        "spec.training.maxNonFiniteSteps: 3: grad_norm is not finite in 3 steps in a row",
        "the last of them step 12 (learning rate 1.00e-02)",
        "the weights are those of step 9; last good checkpoint: file:///runs/a/checkpoints/9; the batch is in",
        "file:///runs/a/non-finite/step-00000012.jsonl",
        "hint: check that batch",
    ):
        assert words in str(error)


def test_a_saved_batch_holds_every_array_and_the_text_of_each_example() -> None:
    tokenizer = byte_tokenizer()
    hello, you = tokenizer.encode("hello"), tokenizer.encode("you")
    tokens = np.array([[*hello, *you, 0, 0]], np.int32)
    batch = Batch(
        tokens_BT=tokens,
        targets_BT=tokens + 1,
        positions_BT=np.array([[0, 1, 2, 3, 4, 0, 1, 2, 0, 0]], np.int32),
        segment_ids_BT=np.array([[1] * 5 + [2] * 3 + [0] * 2], np.int32),
        mask_BT=np.ones((1, 10), np.float32),
        weight_BT=np.full((1, 10), 0.5, np.float32),
        advantages_BT=np.full((1, 10), np.nan, np.float32),
    )
    (line,) = nonfinite.rows(batch, tokenizer).splitlines()
    row = json.loads(line, parse_constant=partial(pytest.fail, "not JSON"))
    assert row["row"] == 0
    assert row["text"] == ["hello", "you"]
    assert row["tokens"] == tokens[0].tolist()
    assert row["segment_ids"] == [1] * 5 + [2] * 3 + [0] * 2
    assert row["weight"] == [0.5] * 10
    assert row["advantages"] == ["nan"] * 10
    assert "old_logps" not in row


def test_a_saved_batch_whose_rows_share_a_prompt_says_it_in_each() -> None:
    tokenizer = byte_tokenizer()
    row = np.array([list(b"c12"), list(b"c34")], np.int32)
    ones, zeros = np.ones((2, 3), np.int32), np.zeros((2, 3), np.float32)
    prompt = np.array([list(b"ab")], np.int32)
    batch = Batch(row, row, ones, ones, zeros, zeros, prompts=Prompts(prompt, prompt * 0, prompt * 0 + 1))
    lines = [json.loads(line) for line in nonfinite.rows(batch, tokenizer).splitlines()]
    assert [line["prompt"] for line in lines] == [list(b"ab")] * 2
    assert [line["text"] for line in lines] == [["c12"], ["c34"]]
