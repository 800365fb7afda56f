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
    luspo       gspo's surrogate                       mean over sequences of token sums    2602.05261
    vespo       −sg(φ(W))·A·lp; W = exp(Σ log w)       global token mean                    2602.10693
    dppo        −sg(min(w, 20))·A·lp inside the region global token mean                    2602.04879

    φ(W) = exp(λ + k·log W − λ·W), with k and λ of A ≥ 0 or of A < 0: 1 at W = 1
    dppo's region: no token whose probability left the sampler's by more than δ, and goes on in A's direction;
    |π − μ| > δ, for dppo-kl the KL of two outcomes, the token and any other

Old is the policy before the batch's first update; with vespo that times the sampler's correction, with dppo the sampler
itself (`anchor`), so both need no correction afterwards. Degenerate case: with one update per batch, w is 1: the value
is −A, whose mean is about 0, and the gradient is the plain policy gradient −A·∇lp. sapo has that gradient too, and the
value −2A/τ; luspo's is T times as large for a sequence of T tokens. Left out: DAPO's dynamic sampling
and overlong penalty, which concern the rollout and the reward, not the loss.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ptapi.defaults import CLIPS, GAMMA_WEIGHT, SOFT_CLIP
from pttrainer.batch import Batch
from pttrainer.data import loss_weights

MAX_LOG_RATIO = 20.0
NO_CLIP = (1.0, math.inf)
"""Bounds that no ratio is outside of."""


LEAST_WEIGHT = 1e-8
"""Smallest weight of a sequence in vespo, and of a correction in its logarithm."""
ALMOST_CERTAIN = 1.0 - 1e-7
"""Largest probability in the logarithm of what is left of 1."""
RATIO_CAP = 20.0
"""dppo's bound on the ratio, for stability: its region is what keeps the policy near."""


class Clip(NamedTuple):
    """The clip range ε and ε_high; dual: the bound c for negative advantages, or None.

    soft: sapo's temperatures for positive advantages and for others; gamma: vespo's (k, λ), likewise.
    """

    low: float
    high: float
    dual: float | None = None
    soft: tuple[float, float] = SOFT_CLIP
    gamma: tuple[tuple[float, float], tuple[float, float]] = GAMMA_WEIGHT


Clipped = Callable[[Array, Array, Array, Clip], tuple[Array, Array]]


class Variant(NamedTuple):
    """The choices of a loss's paper: (lp, old, A, mask, clip) -> (loss, ratio), reduction, advantage, clip.

    clipped: (ratio, old, A, clip) -> whether a token counts as clipped below, and above. old: whose log-probs the ratio
    is to: `old`, the policy's before the first update; `corrected`, that and the sampler's correction; `sampler`.
    """

    loss: Callable[[Array, Array, Array, Array, Clip], tuple[Array, Array]]
    weights: Callable[[np.ndarray, int], np.ndarray]
    advantage: str
    clip: Clip
    clipped: Clipped
    old: Literal["old", "corrected", "sampler"] = "old"


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


def vespo(logps_BT: Array, old_BT: Array, advantages_BT: Array, mask_BT: Array, clip: Clip) -> tuple[Array, Array]:
    """Return loss and ratio for vespo: φ of the whole sequence's ratio weighs each token's gradient, smoothly."""
    log_W_B1 = jnp.sum((logps_BT - old_BT) * mask_BT, axis=1, keepdims=True)
    log_W_B1 = lax.stop_gradient(jnp.clip(log_W_B1, math.log(LEAST_WEIGHT), MAX_LOG_RATIO))
    k_BT, lambda_BT = (jnp.where(advantages_BT >= 0, *pair) for pair in zip(*clip.gamma, strict=True))
    phi_BT = jnp.exp(lambda_BT + k_BT * log_W_B1 - lambda_BT * jnp.exp(log_W_B1))
    return -phi_BT * advantages_BT * logps_BT, jnp.exp(log_ratio(logps_BT, old_BT))


def dppo(logps_BT: Array, old_BT: Array, advantages_BT: Array, mask_BT: Array, clip: Clip) -> tuple[Array, Array]:
    """Return loss and ratio for dppo: no gradient where the probability left the sampler's by more than δ."""
    return _inside(logps_BT, old_BT, advantages_BT, clip, outside_by_tv)


def dppo_kl(logps_BT: Array, old_BT: Array, advantages_BT: Array, mask_BT: Array, clip: Clip) -> tuple[Array, Array]:
    """Return loss and ratio for dppo-kl: as dppo, with the KL of two outcomes as the distance."""
    return _inside(logps_BT, old_BT, advantages_BT, clip, outside_by_kl)


def _inside(logps_BT: Array, old_BT: Array, advantages_BT: Array, clip: Clip, outside: Clipped) -> tuple[Array, Array]:
    ratio_BT = jnp.exp(log_ratio(logps_BT, old_BT))
    low_BT, high_BT = outside(lax.stop_gradient(ratio_BT), old_BT, advantages_BT, clip)
    weight_BT = jnp.where(low_BT | high_BT, 0.0, lax.stop_gradient(jnp.minimum(ratio_BT, RATIO_CAP)))
    return -weight_BT * advantages_BT * logps_BT, ratio_BT


def clipped_ratio(ratio_BT: Array, old_BT: Array, advantages_BT: Array, clip: Clip) -> tuple[Array, Array]:
    """Return where the clip takes effect: below for A < 0, above for A > 0, and for A < 0 above a dual clip's bound."""
    low_BT = (ratio_BT < 1.0 - clip.low) & (advantages_BT < 0)
    high_BT = (ratio_BT > 1.0 + clip.high) & (advantages_BT > 0)
    return low_BT, high_BT if clip.dual is None else high_BT | ((ratio_BT > clip.dual) & (advantages_BT < 0))


def cut_weight(ratio_BT: Array, old_BT: Array, advantages_BT: Array, clip: Clip) -> tuple[Array, Array]:
    """Return where a weight is cut (cispo): above an absolute bound, whatever A is, and never below."""
    return jnp.zeros_like(ratio_BT, bool), ratio_BT > clip.high


def outside_by_tv(ratio_BT: Array, old_BT: Array, advantages_BT: Array, clip: Clip) -> tuple[Array, Array]:
    """Return what is outside dppo's region: below for A ≤ 0, above for A > 0."""
    sampler_BT = jnp.exp(old_BT)
    return _outside(jnp.abs(ratio_BT - 1.0) * sampler_BT, ratio_BT, advantages_BT, clip)


def outside_by_kl(ratio_BT: Array, old_BT: Array, advantages_BT: Array, clip: Clip) -> tuple[Array, Array]:
    """Return what is outside dppo-kl's region."""
    sampler_BT = jnp.exp(old_BT)
    policy_BT = jnp.minimum(ratio_BT * sampler_BT, ALMOST_CERTAIN)
    others_BT = jnp.log1p(-jnp.minimum(sampler_BT, ALMOST_CERTAIN)) - jnp.log1p(-policy_BT)
    kl_BT = -sampler_BT * jnp.log(ratio_BT) + (1.0 - sampler_BT) * others_BT
    return _outside(kl_BT, ratio_BT, advantages_BT, clip)


def _outside(distance_BT: Array, ratio_BT: Array, advantages_BT: Array, clip: Clip) -> tuple[Array, Array]:
    low_BT = (distance_BT > clip.low) & (ratio_BT < 1.0) & (advantages_BT <= 0)
    return low_BT, (distance_BT > clip.high) & (ratio_BT > 1.0) & (advantages_BT > 0)


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


def _sequence_sum(mask_NT: np.ndarray, max_new_tokens: int) -> np.ndarray:
    return loss_weights.sequence_sum(mask_NT)


def _variant(
    loss: Callable[[Array, Array, Array, Array, Clip], tuple[Array, Array]],
    weights: Callable[[np.ndarray, int], np.ndarray],
    name: str,
    advantage: str = "group",
    clipped: Clipped = clipped_ratio,
) -> Variant:
    return Variant(loss, weights, advantage, Clip(*CLIPS.get(name, NO_CLIP)), clipped)


VARIANTS: dict[str, Variant] = {
    "grpo": _variant(token, _sequence_mean, "grpo"),
    "dr-grpo": _variant(token, _fixed_length, "dr-grpo", "centered"),
    "dapo": _variant(token, _token_mean, "dapo"),
    "gspo": _variant(sequence, _sequence_mean, "gspo"),
    "gspo-token": _variant(sequence_by_token, _sequence_mean, "gspo-token"),
    "luspo": _variant(sequence, _sequence_sum, "luspo"),
    "cispo": _variant(cispo, _token_mean, "cispo", clipped=cut_weight),
    "sapo": _variant(sapo, _sequence_mean, "sapo"),
    "vespo": _variant(vespo, _token_mean, "vespo")._replace(old="corrected"),
    "dppo": _variant(dppo, _token_mean, "dppo", clipped=outside_by_tv)._replace(old="sampler"),
    "dppo-kl": _variant(dppo_kl, _token_mean, "dppo-kl", clipped=outside_by_kl)._replace(old="sampler"),
    "rloo": _variant(token, _token_mean, "rloo", "leave-one-out"),
}
"""Losses by name in `spec.algorithm.grpo.loss`."""
