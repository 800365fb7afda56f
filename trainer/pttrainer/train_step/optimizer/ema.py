"""The exponential moving average of the weights (`training.ema`), which is evaluated and exported in their place.

    average ← d · average + (1 − d) · weights      after every step, d = min(decay, (1 + t) / (10 + t))

t counts steps from 0: the average starts as the initial weights and forgets them within a few steps, so they do not
dominate a short run (TensorFlow's `ExponentialMovingAverage` with `num_updates`). It is float32 whatever the weights
are, lives where they live, and is part of the optimizer's state, hence of checkpoints; a skipped step leaves it alone.
With adapters, it is the average of the adapters.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from pttrainer.models import Params


class EmaState(NamedTuple):
    """Optimizer state with an average."""

    ema: Params
    count: Any
    inner: Any


def wrap(rule: optax.GradientTransformationExtraArgs, decay: float) -> optax.GradientTransformationExtraArgs:
    """Add an average of the weights to the rule."""

    def init(params: Any) -> EmaState:
        average = jax.tree.map(lambda x: x.astype(jnp.float32), params)
        return EmaState(average, jnp.zeros((), jnp.int32), rule.init(params))

    def update(gradient: Any, state: EmaState, params: Any = None, **extra: Any) -> tuple[Any, EmaState]:
        change, inner = rule.update(gradient, state.inner, params, **extra)
        t = state.count.astype(jnp.float32)
        share = 1.0 - jnp.minimum(decay, (1.0 + t) / (10.0 + t))
        new = optax.apply_updates(params, change)
        average = jax.tree.map(lambda e, x: e + share * (x.astype(jnp.float32) - e), state.ema, new)
        return change, EmaState(average, state.count + 1, inner)

    return optax.GradientTransformationExtraArgs(init, update)


def averaged_params(optimizer_state: Any, params: Params) -> Params:
    """Return the average in the weights' number format, or the weights themselves without one."""
    if not isinstance(optimizer_state, EmaState):
        return params
    average: Params = jax.tree.map(lambda e, x: e.astype(x.dtype), optimizer_state.ema, params)
    return average
