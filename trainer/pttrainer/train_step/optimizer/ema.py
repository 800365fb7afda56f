"""The exponential moving average of the weights (`training.ema`): what is evaluated and exported in their place.

    average ← d · average + (1 − d) · weights      after every step, d = min(decay, (1 + t) / (10 + t))

t counts steps from 0: the average starts as the first weights and forgets them within a few steps, so a short run is
not dominated by them (TensorFlow's `ExponentialMovingAverage` with `num_updates`). It is float32 whatever the weights
are, lives where they live, and is part of the optimizer's state, hence of checkpoints; a skipped step leaves it alone.
Of adapters, it is the average of the adapters.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from pttrainer.models import Params


class Averaged(NamedTuple):
    """Optimizer state with an average beside it."""

    ema: Params
    count: Any
    inner: Any


def around(rule: optax.GradientTransformation, decay: float) -> optax.GradientTransformation:
    """The rule, with an average of the weights that it makes."""

    def init(params: Any) -> Averaged:
        average = jax.tree.map(lambda x: x.astype(jnp.float32), params)
        return Averaged(average, jnp.zeros((), jnp.int32), rule.init(params))

    def update(gradient: Any, state: Averaged, params: Any = None) -> tuple[Any, Averaged]:
        change, inner = rule.update(gradient, state.inner, params)
        t = state.count.astype(jnp.float32)
        share = 1.0 - jnp.minimum(decay, (1.0 + t) / (10.0 + t))
        new = optax.apply_updates(params, change)
        average = jax.tree.map(lambda e, x: e + share * (x.astype(jnp.float32) - e), state.ema, new)
        return change, Averaged(average, state.count + 1, inner)

    return optax.GradientTransformation(init, update)


def of(optimizer_state: Any, params: Params) -> Params:
    """The average, in the weights' number format; the weights themselves where none is kept."""
    if not isinstance(optimizer_state, Averaged):
        return params
    average: Params = jax.tree.map(lambda e, x: e.astype(x.dtype), optimizer_state.ema, params)
    return average
