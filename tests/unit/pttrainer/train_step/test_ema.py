"""The average of the weights: by hand, in float32, and left alone by skipped steps."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from pttrainer.train_step import nonfinite
from pttrainer.train_step.optimizer import ema

GRADIENT = {"w": jnp.array([1.0, -2.0])}


def test_the_average_is_the_papers_and_forgets_the_first_weights_quickly() -> None:
    rule = ema.wrap(optax.sgd(1.0), 0.5)
    params = {"w": jnp.array([0.0, 0.0])}
    state = rule.init(params)
    average, weight = 0.0, 0.0
    for t in range(12):
        change, state = rule.update(GRADIENT, state, params)
        params = optax.apply_updates(params, change)
        weight -= 1.0
        d = min(0.5, (1 + t) / (10 + t))
        average = d * average + (1 - d) * weight
        np.testing.assert_allclose(ema.averaged_params(state, params)["w"], [average, -2 * average], rtol=1e-5)
    assert -12 < average < -10.5


def test_the_average_of_bfloat16_weights_is_kept_in_float32_and_read_in_bfloat16() -> None:
    rule = ema.wrap(optax.sgd(1.0), 0.999)
    params: Any = {"w": jnp.full((2,), 256.0, jnp.bfloat16)}
    state = rule.init(params)
    for _ in range(4):
        _, state = rule.update({"w": jnp.full((2,), -2.0, jnp.bfloat16)}, state, params)
    average = np.asarray(state.ema["w"])
    assert average.dtype == np.float32
    assert 257.9 < average[0] < 258.0  # bfloat16 has no number between 256 and 258
    assert ema.averaged_params(state, params)["w"].dtype == jnp.bfloat16


def test_weights_stand_for_themselves_where_no_average_is_kept() -> None:
    params: Any = {"w": jnp.ones(2)}
    assert ema.averaged_params(optax.sgd(1.0).init(params), params) is params


def test_a_skipped_step_leaves_the_average_and_its_count_alone() -> None:
    rule = ema.wrap(optax.sgd(1.0), 0.9)
    params: Any = {"w": jnp.ones(2)}
    before = rule.init(params)
    _, after = rule.update({"w": jnp.array([jnp.nan, 1.0])}, before, params)
    jax.tree.map(np.testing.assert_array_equal, nonfinite.choose(jnp.array(False), after, before), before)
