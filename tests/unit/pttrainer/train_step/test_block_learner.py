"""The head that proposes tokens learns beside the policy, and the policy does not notice."""

import dataclasses
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tests.builders.trainer.steps import Likelihood, batch, compiled, single

from ptapi.spec import BlockDrafts, Optimizer
from pttrainer.models import Model, preset
from pttrainer.models.decoding.block_head import BlockHead
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.sharding import put
from pttrainer.train_step.block_learner import LOSS, block_learner, loss, updated
from pttrainer.train_step.optimizer import transformation
from pttrainer.train_step.program import Program

MODEL = Model(dataclasses.replace(preset("tiny"), layers=1))
STEPS = 4


@lru_cache
def run(*, has_head: bool, shape: tuple[int, ...] = (), micro_batch: int | None = None) -> tuple[Any, list[Any]]:
    """The state after a few steps on one batch, and the metrics of each."""
    mesh = sharding.make_mesh(shape) if shape else single()
    rate = optax.constant_schedule(1e-3)
    updates = transformation.build(Optimizer(), rate, MODEL.logical_axes())
    objective: Any = Likelihood()
    block = block_learner(BlockDrafts(tokens=2, learning_rate=3e-3), MODEL.config.d_model, 0) if has_head else None
    step, fresh = compiled(Program(MODEL, objective, updates, rate, micro_batch, block=block), mesh)
    state, metrics = fresh(), []
    with jax.set_mesh(mesh):
        for _ in range(STEPS):
            state, facts = step(state, put(mesh, batch()))
            metrics.append(jax.device_get(facts))
    return jax.device_get(state), metrics


def test_the_policy_learns_the_same_and_the_head_learns() -> None:
    (alone, facts), (state, with_head) = run(has_head=False), run(has_head=True)
    assert [one["loss"] for one in facts] == [one["loss"] for one in with_head]
    jax.tree.map(np.testing.assert_array_equal, state.params, alone.params)
    assert alone.block is None
    assert with_head[2][LOSS] < with_head[0][LOSS]  # steps 0 and 2 begin at the same anchors
    assert LOSS not in facts[0]


def test_micro_batches_and_devices_give_the_same_head() -> None:
    whole, split = run(has_head=True), run(has_head=True, shape=(1, 2, 2), micro_batch=4)
    for name in ("up", "down"):
        np.testing.assert_allclose(split[0].block.params[name], whole[0].block.params[name], atol=2e-5)
    np.testing.assert_allclose([m[LOSS] for m in split[1]], [m[LOSS] for m in whole[1]], rtol=1e-5)


def test_the_loss_is_that_of_every_kth_token_whose_followers_all_count() -> None:
    head, part = BlockHead(2, 4), batch()._replace(segment_ids_BT=None)
    random = [jax.random.normal(jax.random.key(n), shape) for n, shape in enumerate(((8, 16, 4), (264, 4), (2, 4, 4)))]
    hidden_BTD, head_VD, down = random
    params = {**head.init(jax.random.key(9)), "down": down}
    summed = loss(head, params, hidden_BTD, head_VD, part, jnp.int32(1), None)
    states_BTKD = head.states(params, hidden_BTD, head_VD, jnp.asarray(part.targets_BT))
    logps_BTKV = jax.nn.log_softmax(states_BTKD @ head_VD.T)
    mask_BT, total, count = np.asarray(part.mask_BT) > 0, 0.0, 0
    for b in range(8):
        for t in range(1, 16, 2):
            for k in (1, 2):
                if t + k < 16 and mask_BT[b, t : t + k + 1].all():
                    total, count = total - float(logps_BTKV[b, t, k - 1, part.targets_BT[b, t + k]]), count + 1
    assert count > 10
    assert float(summed.count) == count
    np.testing.assert_allclose(summed.value, total, rtol=1e-5)


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    learner = block_learner(BlockDrafts(tokens=1), 4, 0)
    state = learner.new_state()
    bad = jax.tree.map(lambda x: jnp.full(x.shape, jnp.inf), state.params)
    jax.tree.map(np.testing.assert_array_equal, updated(learner, state, bad, jnp.float32(1.0)), state)
