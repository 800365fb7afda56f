"""Metrics of every policy-gradient loss: clipping, ratios, and the difference between sampler and trainer."""

import jax.numpy as jnp
from jax import Array

from ptapi import run_directory
from pttrainer.batch import Batch
from pttrainer.data.loss_weights import Largest, Mean, Metric, Smallest
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.losses.policy_gradient import Clip, Clipped, clipped_ratio, log_ratio
from pttrainer.losses.reference_kl import k3

NEAR = (0.9, 1.1)
"""Ratios of two probabilities of a token that count as near 1, both ends included."""


def of_policy(
    stats: TokenStats,
    batch: Batch,
    old_BT: Array,
    ratio_BT: Array,
    importance_BT: Array,
    clip: Clip,
    clipped: Clipped = clipped_ratio,
    anchor_BT: Array | None = None,
) -> dict[str, Metric]:
    """Return all of them, with the policy's entropy and its KL from the reference, if there is one.

    anchor_BT: the log-probs that the ratio is to, if they are not the policy's before the first update.
    """
    anchor_BT = old_BT if anchor_BT is None else anchor_BT
    metrics = of_ratio(ratio_BT, anchor_BT, batch.advantages_BT, clip, clipped)
    metrics |= of_sampler(old_BT, batch.sampler_logps_BT, importance_BT)
    metrics[run_directory.ENTROPY] = Mean(stats.entropy_BT)
    if batch.ref_logps_BT is not None:
        metrics[run_directory.KL] = Mean(k3(stats.logps_BT, batch.ref_logps_BT))
    return metrics


def of_ratio(
    ratio_BT: Array, old_BT: Array, advantages_BT: Array, clip: Clip, clipped: Clipped = clipped_ratio
) -> dict[str, Metric]:
    """Return the metrics of ratio and clip. clipped: where a clip takes effect."""
    low_BT, high_BT = clipped(ratio_BT, old_BT, advantages_BT, clip)
    return {
        "clip_fraction": Mean(low_BT | high_BT),
        "clip_fraction/low": Mean(low_BT),
        "clip_fraction/high": Mean(high_BT),
        "ratio": Mean(ratio_BT + 0.0 * advantages_BT),
        "ratio/outside": Mean(_is_outside(ratio_BT + 0.0 * advantages_BT)),
    }


def of_sampler(old_BT: Array, sampler_BT: Array, importance_BT: Array) -> dict[str, Metric]:
    """Return how far apart sampler and trainer are on the same tokens."""
    difference_BT = jnp.abs(old_BT - sampler_BT)
    ratio_BT = jnp.exp(log_ratio(old_BT, sampler_BT))
    return {
        "sampler/difference": Mean(difference_BT),
        "sampler/difference/max": Largest(difference_BT),
        "sampler/outside": Mean(_is_outside(ratio_BT)),
        "sampler/kl": Mean(k3(sampler_BT, old_BT)),
        "sampler/weight": Mean(importance_BT),
        "sampler/weight/min": Smallest(importance_BT),
        "sampler/weight/max": Largest(importance_BT),
    }


def _is_outside(ratio_BT: Array) -> Array:
    return (ratio_BT < NEAR[0]) | (ratio_BT > NEAR[1])
