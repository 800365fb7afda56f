"""Adam, whose moments are written before the weights are on a CPU, and stay as they were in a step that is not finite.

XLA's compiler for CPUs writes one array with each pass over memory. As optax orders the formula, the pass that writes a
weight computes both new moments again from the old ones; so these are copied before any is written, and the update
of a weight touches 17 arrays of its size. From moments that are chosen and written first it is 12, and none is copied
(figures: docs/findings/training-on-cpu.md). Elsewhere one pass writes all three, as before. The bits are optax's.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from pttrainer.runtime.distributed import sharding


class AdamState(NamedTuple):
    """The state of `optax.scale_by_adam`, after the choice that `nonfinite.choose` makes for others."""

    count: Any
    mu: Any
    nu: Any


def scale_by_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformationExtraArgs:
    """Return `optax.scale_by_adam`. Its update takes is_finite: False keeps the state, and the change is of no use."""
    rule = optax.scale_by_adam(b1, b2, eps)

    def init(params: Any) -> AdamState:
        return AdamState(*rule.init(params))

    def update(
        gradient: Any, state: AdamState, params: Any = None, *, is_finite: Array | bool = True, **others: Any
    ) -> tuple[Any, AdamState]:
        change, new = rule.update(gradient, state)
        chosen = jax.tree.map(lambda after, before: jnp.where(is_finite, after, before), AdamState(*new), state)
        if sharding.chip()[0] != "cpu":
            return change, chosen
        chosen = lax.optimization_barrier(chosen)
        first, second = (
            optax.tree.bias_correction(moment, decay, chosen.count)
            for moment, decay in ((chosen.mu, b1), (chosen.nu, b2))
        )
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), first, second), chosen

    return optax.GradientTransformationExtraArgs(init, update)
