"""The KL to the reference model, per token, float32: as a loss, and as a value that is watched."""

import jax.numpy as jnp
from jax import Array, lax

from pttrainer.losses.policy_gradient import log_ratio


def kl(estimator: str, logps_BT: Array, ref_BT: Array, weight_BT: Array) -> Array:
    """Return KL(policy ‖ reference) per token, as a loss whose gradient is that of the reverse KL.

    weight_BT: the policy's probability by the sampler's, w. The gradient is w·(lp − ref)·∇lp, whose expectation over
    the sampler's tokens is the policy's own: without w it would be another's as soon as samples are stale. The value is
    w times the estimator: k2 is ½(lp − ref)², k3 is exp(ref − lp) − (ref − lp) − 1, which is unbiased. k1 = lp − ref is
    no loss: its expected gradient is 0.
    """
    value_BT = 0.5 * jnp.square(logps_BT - ref_BT) if estimator == "k2" else k3(logps_BT, ref_BT)
    # The gradient is written out: as the product's, that of k3 is the difference of two exponentials, which loses its
    # digits where the reference is far above the policy, and has the wrong sign beyond the clamp of `k3`.
    slope_BT = lax.stop_gradient(weight_BT * (logps_BT - ref_BT))
    return lax.stop_gradient(weight_BT * value_BT) + slope_BT * (logps_BT - lax.stop_gradient(logps_BT))


SMALL = 0.1
"""Differences of log-probs below which k3 uses its series: exp(d) − d − 1 would be rounding noise."""


def k3(logps_BT: Array, ref_BT: Array) -> Array:
    """Return exp(d) − d − 1 with d = ref − lp: never negative, even in float32, and unbiased as a value."""
    difference_BT = log_ratio(ref_BT, logps_BT)
    small_BT = jnp.clip(difference_BT, -SMALL, SMALL)
    series_BT = 1.0 + small_BT / 3.0 * (1.0 + small_BT / 4.0 * (1.0 + small_BT / 5.0))
    near_BT = 0.5 * jnp.square(small_BT) * series_BT
    return jnp.where(jnp.abs(difference_BT) < SMALL, near_BT, jnp.expm1(difference_BT) - difference_BT)
