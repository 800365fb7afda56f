"""The entropy of predictions in grpo's loss: tokens chosen by it, and a bonus on it with its coefficient.

Letters: B rows, T tokens, N tokens that count in the batch, K of them that are chosen. H is a token's entropy, nats.

    chosen      H ≥ the (1 − share) quantile of all N, interpolated linearly           arXiv 2506.01939
    bonus       loss − c · mean of H over the chosen tokens, whatever the loss's own mean
    adaptive c  + δ where the batch's mean H is at most the target, else − δ; in the loss only after a batch whose mean
                was at most the target                                                  arXiv 2505.22312

Quantile and means are of the whole batch, so micro-batches and devices change nothing. Degenerate case: with a share of
1 every token is chosen, and the mean is that of the metric `entropy`.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from ptapi.spec import Grpo
from pttrainer.data import loss_weights

CHOSEN = "entropy/chosen"
"""Metric: the mean entropy of the chosen tokens."""
COEFFICIENT = "entropy/coefficient"
"""Metric: the adaptive coefficient that a step's loss had."""


def chosen(entropy_BT: Array, mask_BT: Array, share: float) -> Array:
    """Return N / K for each of the K tokens of highest entropy, 0 for all others; of any shape."""
    counts_BT = mask_BT > 0
    N = jnp.sum(counts_BT)
    ascending = jnp.sort(jnp.where(counts_BT, entropy_BT, jnp.inf).ravel())
    place = (1.0 - share) * jnp.maximum(N - 1, 0).astype(jnp.float32)
    below, above = (ascending[of(place).astype(jnp.int32)] for of in (jnp.floor, jnp.ceil))
    least = below + (place - jnp.floor(place)) * (above - below)
    is_chosen_BT = counts_BT & (entropy_BT >= least)
    return jnp.where(is_chosen_BT, N / jnp.maximum(jnp.sum(is_chosen_BT), 1), 0.0)


def bonus(mask_BT: np.ndarray, weight_BT: np.ndarray, coefficient: float) -> np.ndarray:
    """Return what Σ weight · bonus · H needs to be the coefficient times the mean of H over all tokens."""
    mean_BT = np.float32(coefficient) * loss_weights.token_mean(mask_BT)
    weighed_BT: np.ndarray = np.divide(mean_BT, weight_BT, out=np.zeros_like(mean_BT), where=weight_BT > 0)
    return weighed_BT


class EntropyState(NamedTuple):
    """The coefficient, and the mean entropy of the last batch: no bonus before there is one. float32."""

    coefficient: Any
    last: Any


@dataclass(frozen=True)
class EntropyControl:
    """The adaptive coefficient of a job."""

    first: float
    target: float
    delta: float
    lowest: float
    highest: float

    def new_state(self) -> EntropyState:
        """Return the state before the first step."""
        return EntropyState(jnp.float32(self.first), jnp.float32(jnp.inf))

    def applied(self, state: EntropyState) -> Array:
        """Return the coefficient of the next step's loss."""
        return jnp.where(state.last <= self.target, state.coefficient, 0.0)

    def updated(self, state: EntropyState, entropy: Array) -> EntropyState:
        """Return the state after a step whose chosen tokens had this mean entropy."""
        more, less = state.coefficient + self.delta, state.coefficient - self.delta
        is_low = entropy <= self.target
        coefficient = jnp.where(is_low, jnp.minimum(more, self.highest), jnp.maximum(less, self.lowest))
        return EntropyState(coefficient.astype(jnp.float32), entropy.astype(jnp.float32))


def control(spec: Grpo | None) -> EntropyControl | None:
    """Return the job's adaptive coefficient, if it has one."""
    if spec is None or spec.entropy_bonus is None or spec.entropy_bonus.adaptive is None:
        return None
    adaptive = spec.entropy_bonus.adaptive
    first = spec.entropy_bonus.coefficient
    return EntropyControl(first, adaptive.target, adaptive.delta, adaptive.lowest, adaptive.highest)
