"""Loss weights and metrics that do not depend on micro-batches and devices.

The rule: a batch carries `weight_BT`, computed here once from the mask of the *whole* optimizer step, and the loss is Σ
weight · value. Sums over micro-batches and devices then add up to the exact loss; there is no mean of means anywhere.
Metrics are pairs (sum, count) or extremes until the step's end, for the same reason.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


def token_mean(mask_BT: np.ndarray) -> np.ndarray:
    """Return weights of the mean over all tokens that count (sft, dapo, cispo, rloo)."""
    mask: np.ndarray = np.asarray(mask_BT, np.float32)
    return mask / max(float(mask.sum(dtype=np.float64)), 1.0)


def sequence_mean(mask_BT: np.ndarray) -> np.ndarray:
    """Return weights of the mean of each row's token mean (grpo, gspo). A row without tokens does not count."""
    mask = np.asarray(mask_BT, np.float32)
    lengths_B1 = mask.sum(axis=1, keepdims=True)
    rows = max(int((lengths_B1 > 0).sum()), 1)
    weights: np.ndarray = mask / np.maximum(lengths_B1, 1.0) / np.float32(rows)
    return weights


def sequence_sum(mask_BT: np.ndarray) -> np.ndarray:
    """Return weights of the mean over rows of each row's sum (luspo). A row without tokens does not count."""
    mask: np.ndarray = np.asarray(mask_BT, np.float32)
    return mask / np.float32(max(int((mask.sum(axis=1) > 0).sum()), 1))


def fixed_length(mask_BT: np.ndarray, sequences: int, max_new_tokens: int) -> np.ndarray:
    """Return weights of Σ / (N · max new tokens) (dr-grpo): a long completion is not favoured over a short one."""
    return np.asarray(mask_BT, np.float32) / np.float32(max(sequences * max_new_tokens, 1))


def row_mean(mask_BT: np.ndarray) -> np.ndarray:
    """Return weights of the mean over rows whose loss is one number (dpo).

    A row's weight is on its first token that counts: spreading it over all tokens would only round it. A row
    without tokens does not count.
    """
    counts_BT = np.asarray(mask_BT) > 0
    first_BT = counts_BT & (np.cumsum(counts_BT, axis=1) == 1)
    weights: np.ndarray = first_BT.astype(np.float32) / np.float32(max(int(first_BT.sum()), 1))
    return weights


def perplexity(nll: float) -> float:
    """Return exp of a mean negative log-likelihood, at most about exp(709), the largest float."""
    return math.exp(min(nll, 700.0))


class Mean(NamedTuple):
    """A metric that is the mean over tokens that count; of_BT: only over those where it is above 0."""

    values_BT: Array
    of_BT: Array | None = None


class Largest(NamedTuple):
    """A metric that is the maximum over tokens that count."""

    values_BT: Array


class Smallest(NamedTuple):
    """A metric that is the minimum over tokens that count."""

    values_BT: Array


class RowMean(NamedTuple):
    """A metric that is the mean over rows with a token that counts; of_B: only over those where it is above 0."""

    values_B: Array
    of_B: Array | None = None

    def mean(self) -> float:
        """Return the mean where all rows count; 0 without any."""
        ones_B1 = jnp.ones_like(self.values_B)[:, None]
        part = partial(self, ones_B1)
        return float(part.value / jnp.maximum(part.count, 1.0))


Metric = Mean | Largest | Smallest | RowMean


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Partial:
    """A micro-batch's contribution to a metric: sum and count of a mean; an extreme and 0. kind: of the metric."""

    value: Array
    count: Array
    kind: type[Metric] = field(metadata={"static": True})


def partial(metric: Metric, mask_BT: Array) -> Partial:
    """Return one micro-batch's contribution to a metric."""
    counts_BT = mask_BT > 0
    if isinstance(metric, RowMean):
        counts_B = jnp.any(counts_BT, axis=1)
        if metric.of_B is not None:
            counts_B &= metric.of_B > 0
        total = jnp.sum(jnp.where(counts_B, metric.values_B, 0.0))
        return Partial(total, jnp.sum(counts_B.astype(jnp.float32)), RowMean)
    values = metric.values_BT.astype(jnp.float32)
    zero = jnp.zeros((), jnp.float32)
    if isinstance(metric, Largest):
        return Partial(jnp.max(jnp.where(counts_BT, values, -jnp.inf)), zero, Largest)
    if isinstance(metric, Smallest):
        return Partial(jnp.min(jnp.where(counts_BT, values, jnp.inf)), zero, Smallest)
    if metric.of_BT is not None:
        counts_BT &= metric.of_BT > 0
    return Partial(jnp.sum(jnp.where(counts_BT, values, 0.0)), jnp.sum(counts_BT.astype(jnp.float32)), Mean)


def finish(stacked: Partial) -> Array:
    """Return the metric from the stacked contributions of all micro-batches."""
    if stacked.kind is Largest:
        return jnp.max(stacked.value)
    if stacked.kind is Smallest:
        return jnp.min(stacked.value)
    return jnp.sum(stacked.value) / jnp.maximum(jnp.sum(stacked.count), 1.0)
