"""Tokens chosen by their entropy, and the bonus on it: of the whole batch, whatever the micro-batches."""

import dataclasses
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.builders.trainer import specs
from tests.builders.trainer.steps import batch, compiled, single

from pttrainer.algorithms import grpo
from pttrainer.batch import Batch
from pttrainer.data import loss_weights
from pttrainer.models import Model, preset
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.sharding import put
from pttrainer.train_step import entropy
from pttrainer.train_step.program import program

MODEL = Model(dataclasses.replace(preset("tiny"), layers=1))
FIRST = 0.25
SPEC: dict[str, Any] = {
    "top_entropy_quantile": 0.4,
    "entropy_bonus": {"coefficient": FIRST, "adaptive": {"target": 50.0, "delta": 0.05}},
}


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 1.0])
def test_tokens_at_the_quantile_and_above_are_chosen_and_weigh_as_much_as_all(share: float) -> None:
    random = np.random.default_rng(1)
    entropy_BT = random.integers(0, 7, (6, 9)).astype(np.float32) / 4  # many are equal
    mask_BT = (random.random((6, 9)) < 0.7).astype(np.float32)
    chosen_BT = np.asarray(entropy.chosen(jnp.asarray(entropy_BT), jnp.asarray(mask_BT), share))
    least = np.quantile(entropy_BT[mask_BT > 0], 1.0 - share)
    np.testing.assert_array_equal(chosen_BT > 0, (mask_BT > 0) & (entropy_BT >= least))
    assert chosen_BT.sum() == pytest.approx(mask_BT.sum(), rel=1e-6)
    assert (share < 1.0) == ((chosen_BT > 0).sum() < mask_BT.sum())


def test_of_no_token_none_is_chosen() -> None:
    zeros = jnp.zeros((2, 3))
    np.testing.assert_array_equal(entropy.chosen(zeros + 1.0, zeros, 0.5), 0.0)


def test_the_bonus_is_a_mean_over_tokens_whatever_the_mean_of_the_loss() -> None:
    mask_BT = np.array([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], np.float32)
    weight_BT = loss_weights.sequence_mean(mask_BT)
    np.testing.assert_allclose(entropy.bonus(mask_BT, weight_BT, 0.3) * weight_BT, 0.3 * mask_BT / 4, rtol=1e-6)


def rows(wanted: np.ndarray | float = 1.0) -> Batch:
    """wanted: advantages."""
    plain = batch()
    mask_BT = np.asarray(plain.mask_BT)
    weight_BT, advantages_BT = loss_weights.sequence_mean(mask_BT), wanted * mask_BT
    bonus_BT = entropy.bonus(mask_BT, weight_BT, 1.0)
    return plain._replace(
        weight_BT=weight_BT,
        advantages_BT=advantages_BT,
        sampler_logps_BT=-5.5 * mask_BT,
        entropy_bonus_BT=bonus_BT,
    )


@lru_cache
def step(micro_batch: int | None) -> Any:
    training = {"batch_size": 8, "micro_batch_size": micro_batch, "optimizer": {"learning_rate": 1e-3, "eps": 1.0}}
    spec = specs.tiny({"grpo": SPEC}, training=training)
    mesh = mesh_of(micro_batch)
    return mesh, *compiled(program(spec, MODEL, grpo.Loss(spec), 4), mesh)


def mesh_of(micro_batch: int | None) -> jax.sharding.Mesh:
    """Micro-batches are split over two devices."""
    return single() if micro_batch is None else sharding.make_mesh((1, 2), jax.devices()[:2])


def after(micro_batch: int | None, *batches: Batch) -> tuple[Any, list[dict[str, float]]]:
    mesh, function, fresh = step(micro_batch)
    with jax.set_mesh(mesh):
        state, logged = fresh(), []
        for each in batches:
            state, metrics = function(state, put(mesh, each))
            logged.append({name: float(value) for name, value in metrics.items()})
    return jax.device_get(state), logged


def test_micro_batches_and_devices_choose_the_same_tokens_and_learn_the_same() -> None:
    whole, metrics = after(None, rows(), rows())
    split, of_parts = after(2, rows(), rows())
    for one, other in zip(of_parts, metrics, strict=True):
        for name in (entropy.CHOSEN, entropy.COEFFICIENT, "loss", "grad_norm", "entropy"):
            assert one[name] == pytest.approx(other[name], rel=2e-5, abs=1e-5), name
        assert one[entropy.CHOSEN] > one["entropy"] + 1e-3
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), split.params, whole.params)
    np.testing.assert_allclose(split.entropy, whole.entropy, rtol=1e-5)


def test_the_first_step_has_no_bonus_and_a_step_that_is_skipped_leaves_the_coefficient() -> None:
    state, metrics = after(None, rows(), rows(np.nan), rows())
    assert [line[entropy.COEFFICIENT] for line in metrics] == pytest.approx([0.0, FIRST + 0.05, FIRST + 0.05])
    assert [line["skipped_steps"] for line in metrics] == [0, 1, 1]
    assert state.entropy.coefficient == pytest.approx(FIRST + 0.10)
    assert state.entropy.last == pytest.approx(metrics[2][entropy.CHOSEN])
    mean_loss = -1.0  # of advantages 1 and a ratio of 1, times the sampler's correction
    assert metrics[0]["loss"] > 2 * mean_loss
    assert metrics[2]["loss"] < metrics[0]["loss"] - (FIRST + 0.04) * metrics[2][entropy.CHOSEN]
