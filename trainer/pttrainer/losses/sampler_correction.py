"""The correction for a sampler that is not the trainer: importance weights, and whole sequences left out.

Letters: B sequences (one per row), T tokens. old is the trainer's log-prob at the start of this batch's updates,
sampler that recorded while sampling, lp the new policy's, m the mask, A the advantage.

    r = exp(old − sampler)                      of a token: token-truncate, token-mask
    r = exp(Σ_t m·(old − sampler))              of its whole sequence: sequence-truncate, sequence-mask

    truncate    clip(r, lowest, highest)        little variance, some bias    fengyao.notion.site/off-policy-rl
    mask        r where lowest ≤ r ≤ highest, else 0: the token or sequence teaches nothing       2510.18855

    off-policy mask   0 where A < 0 and mean_t(sampler − lp) > δ, else 1        DeepSeek-V3.2 2512.02556, eq. 9

Degenerate case: where sampler and trainer agree, every weight is 1. Nothing is divided by what is left: a masked token
still counts in the mean, so masking lowers the loss and never raises the weight of others.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from pttrainer.losses.policy_gradient import LEAST_WEIGHT, MAX_LOG_RATIO, log_ratio


class Correction(NamedTuple):
    """What is done with ratios outside the bounds. The default cuts them at 2, token by token.

    Sampler and trainer differ by rounding, and by updates that a stale batch missed: larger ratios are not trusted.
    """

    mode: str = "token-truncate"
    lowest: float = 0.0
    highest: float = 2.0

    @property
    def is_mask(self) -> bool:
        """Return True if ratios outside the bounds become 0."""
        return self.mode.endswith("-mask")


TRUNCATED = Correction()


def weights(old_BT: Array, sampler_BT: Array, mask_BT: Array, correction: Correction = TRUNCATED) -> Array:
    """Return the importance weight of every token, [B, T]."""
    log_BT = log_ratio(old_BT, sampler_BT)
    if correction.mode.startswith("sequence-"):
        sums_B1 = jnp.sum((old_BT - sampler_BT) * mask_BT, axis=1, keepdims=True)
        log_BT = jnp.broadcast_to(jnp.clip(sums_B1, -MAX_LOG_RATIO, MAX_LOG_RATIO), old_BT.shape)
    ratio_BT = jnp.exp(log_BT)
    if correction.is_mask:
        return jnp.where((ratio_BT < correction.lowest) | (ratio_BT > correction.highest), 0.0, ratio_BT)
    return jnp.clip(ratio_BT, correction.lowest, correction.highest)


def anchor(old: str, old_BT: Array, sampler_BT: Array, importance_BT: Array) -> tuple[Array, Array]:
    """Return the log-probs that a loss's ratio is to (`Variant.old`), and the factor that is left of the importance."""
    if old == "old":
        return old_BT, importance_BT
    ones_BT = jnp.ones_like(importance_BT)
    if old == "sampler":
        return sampler_BT, ones_BT
    return old_BT - jnp.log(jnp.maximum(importance_BT, LEAST_WEIGHT)), ones_BT


def kept(logps_BT: Array, sampler_BT: Array, advantages_BT: Array, mask_BT: Array, threshold: float) -> Array:
    """Return 0 for tokens of a negative advantage whose sequence the policy has left by more than the threshold.

    The distance is the mean of sampler − lp over the sequence's tokens. Else 1; [B, T].
    """
    gap_BT = (sampler_BT - lax.stop_gradient(logps_BT)) * mask_BT
    mean_B1 = jnp.sum(gap_BT, axis=1, keepdims=True) / jnp.maximum(jnp.sum(mask_BT, axis=1, keepdims=True), 1.0)
    return ((advantages_BT >= 0) | (mean_B1 <= threshold)).astype(jnp.float32)
