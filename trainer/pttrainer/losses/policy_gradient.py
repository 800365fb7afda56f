"""Policy-gradient losses, one small function each: per token, float32, minimised; the caller reduces.

Letters: B sequences (one per row), T tokens. A is the advantage, lp the new policy's log-prob, old the log-prob
at the start of this batch's updates, m the mask, sg stops the gradient.

    w = exp(clamp(lp − old, ±20))
    clipped surrogate   −min(w·A, clip(w, 1−ε, 1+ε_high)·A)

    grpo        surrogate                              mean over sequences of token means   2402.03300
    dr-grpo     surrogate                              Σ / (N · max new tokens)             2503.20783
    dapo        surrogate, ε_high > ε                  global token mean                    2503.14476
    gspo        surrogate of s = exp(mean log w)       mean over sequences                  2507.18071
    gspo-token  surrogate of s, gradient per token     mean over sequences of token means   2507.18071
    cispo       −sg(min(w, ε_max))·A·lp                global token mean                    2506.13585
    sapo        −σ(τ(w − 1))·4/τ·A; τ = τ⁺ for A > 0   mean over sequences of token means   2511.20347
    rloo        surrogate, leave-one-out A             global token mean                    2402.14740

Degenerate case: with one update per batch, w is 1: the value is −A, whose mean is about 0, and the gradient is
the plain policy gradient −A·∇lp. sapo has that gradient too, and the value −2A/τ. Left out: DAPO's dynamic sampling
and overlong penalty, which concern the rollout and the reward, not the loss.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ptapi.defaults import CLIPS, SOFT_CLIP
from pttrainer.batch import Batch
from pttrainer.data import loss_weights

MAX_LOG_RATIO = 20.0
NO_CLIP = (1.0, math.inf)
"""Bounds that no ratio is outside of."""


class Clip(NamedTuple):
    """The clip range ε and ε_high; dual: the bound c for negative advantages, or None.

    soft: sapo's temperatures for positive advantages and for others.
    """

    low: float
    high: float
    dual: float | None = None
    soft: tuple[float, float] = SOFT_CLIP


class Variant(NamedTuple):
    """The choices of a loss's paper: (lp, old, A, mask, clip) -> (loss, ratio), reduction, advantage, clip.

    cuts_weight: the clip bounds a token's weight by an absolute number, and no gradient is lost.
    """

    loss: Callable[[Array, Array, Array, Array, Clip], tuple[Array, Array]]
    weights: Callable[[np.ndarray, int], np.ndarray]
    advantage: str
    clip: Clip
    cuts_weight: bool = False


def old_policy(logps_BT: Array, batch: Batch) -> Array:
    """Return log-probs before the batch's first update; with one update, the policy's own without gradient."""
    return lax.stop_gradient(logps_BT) if batch.old_logps_BT is None else jnp.asarray(batch.old_logps_BT)


def log_ratio(logps_BT: Array, old_BT: Array) -> Array:
    """Return log w, clamped so that exp neither overflows nor vanishes."""
    return jnp.clip(logps_BT - old_BT, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def surrogate(ratio_BT: Array, advantages_BT: Array, clip: Clip) -> Array:
    """Return −min(w·A, clip(w)·A); with a dual clip never above −c·A where A < 0 (1912.09729)."""
    clipped_BT = jnp.clip(ratio_BT, 1.0 - clip.low, 1.0 + clip.high)
    loss_BT = -jnp.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT)
    if clip.dual is None:
        return loss_BT
    return jnp.where(advantages_BT < 0, jnp.minimum(loss_BT, -clip.dual * advantages_BT), loss_BT)


def token(logps_BT: Array, old_BT: Array, advantages_BT: Array, mask_BT: Array, clip: Clip) -> tuple[Array, Array]:
    """Return loss and ratio for grpo, dr-grpo, dapo, rloo: every token has its own ratio."""
    ratio_BT = jnp.exp(log_ratio(logps_BT, old_BT))
    return surrogate(ratio_BT, advantages_BT, clip), ratio_BT


def sequence(logps_BT: Array, old_BT: Array, advantages_BT: Array, mask_BT: Array, clip: Clip) -> tuple[Array, Array]:
    """Return loss and ratio for gspo: the sequence's ratio replaces every token's."""
    ratio_BT = jnp.exp(_mean_over_tokens(log_ratio(logps_BT, old_BT), mask_BT))
    return surrogate(ratio_BT, advantages_BT, clip), ratio_BT


def sequence_by_token(
    logps_BT: Array, old_BT: Array, advantages_BT: Array, mask_BT: Array, clip: Clip
) -> tuple[Array, Array]:
    """Return loss and ratio for gspo-token: the sequence's value, each token's gradient.

    The ratio is exp(lp − sg(lp) + sg(log s)).
    """
    log_s_BT = _mean_over_tokens(log_ratio(logps_BT, old_BT), mask_BT)
    ratio_BT = jnp.exp(logps_BT - lax.stop_gradient(logps_BT) + lax.stop_gradient(log_s_BT))
    return surrogate(ratio_BT, advantages_BT, clip), ratio_BT


def cispo(logps_BT: Array, old_BT: Array, advantages_BT: Array, mask_BT: Array, clip: Clip) -> tuple[Array, Array]:
    """Return loss and ratio for cispo: every token keeps its gradient; its weight is cut at ε_high (absolute)."""
    ratio_BT = jnp.exp(log_ratio(logps_BT, old_BT))
    weight_BT = lax.stop_gradient(jnp.minimum(ratio_BT, clip.high))
    return -weight_BT * advantages_BT * logps_BT, ratio_BT


def sapo(logps_BT: Array, old_BT: Array, advantages_BT: Array, mask_BT: Array, clip: Clip) -> tuple[Array, Array]:
    """Return loss and ratio for sapo: far from ratio 1 the gradient fades instead of ending.

    A gate of slope 1 at w = 1, where the gradient is the plain one. τ is larger for A ≤ 0, whose gradient fades sooner.
    """
    ratio_BT = jnp.exp(log_ratio(logps_BT, old_BT))
    temperature_BT = jnp.where(advantages_BT > 0, *clip.soft)
    gate_BT = jax.nn.sigmoid(temperature_BT * (ratio_BT - 1.0)) * 4.0 / temperature_BT
    return -gate_BT * advantages_BT, ratio_BT


def _mean_over_tokens(values_BT: Array, mask_BT: Array) -> Array:
    """Return the mean over each row's tokens, [B, 1]."""
    counts_B1 = jnp.maximum(jnp.sum(mask_BT, axis=1, keepdims=True), 1.0)
    return jnp.sum(values_BT * mask_BT, axis=1, keepdims=True) / counts_B1


def _token_mean(mask_NT: np.ndarray, max_new_tokens: int) -> np.ndarray:
    return loss_weights.token_mean(mask_NT)


def _sequence_mean(mask_NT: np.ndarray, max_new_tokens: int) -> np.ndarray:
    return loss_weights.sequence_mean(mask_NT)


def _fixed_length(mask_NT: np.ndarray, max_new_tokens: int) -> np.ndarray:
    return loss_weights.fixed_length(mask_NT, len(mask_NT), max_new_tokens)


VARIANTS: dict[str, Variant] = {
    "grpo": Variant(token, _sequence_mean, "group", Clip(*CLIPS["grpo"])),
    "dr-grpo": Variant(token, _fixed_length, "centered", Clip(*CLIPS["dr-grpo"])),
    "dapo": Variant(token, _token_mean, "group", Clip(*CLIPS["dapo"])),
    "gspo": Variant(sequence, _sequence_mean, "group", Clip(*CLIPS["gspo"])),
    "gspo-token": Variant(sequence_by_token, _sequence_mean, "group", Clip(*CLIPS["gspo-token"])),
    "cispo": Variant(cispo, _token_mean, "group", Clip(*CLIPS["cispo"]), cuts_weight=True),
    "sapo": Variant(sapo, _sequence_mean, "group", Clip(*NO_CLIP)),
    "rloo": Variant(token, _token_mean, "leave-one-out", Clip(*CLIPS["rloo"])),
}
"""Losses by name in `spec.algorithm.grpo.loss`."""


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
