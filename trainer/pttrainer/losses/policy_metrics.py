"""Metrics of every policy-gradient loss: clipping, ratios, and the difference between sampler and trainer."""

import jax.numpy as jnp
from jax import Array

from ptapi import run_directory
from pttrainer.batch import Batch
from pttrainer.data.loss_weights import Largest, Mean, Metric, Smallest
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.losses.policy_gradient import Clip, k3, log_ratio

NEAR = (0.9, 1.1)
"""Ratios of the trainer's to the sampler's probability that count as near 1, both ends included."""


def of_policy(
    stats: TokenStats,
    batch: Batch,
    old_BT: Array,
    ratio_BT: Array,
    importance_BT: Array,
    clip: Clip,
    *,
    cuts_weight: bool = False,
) -> dict[str, Metric]:
    """Return all of them, with the policy's entropy and its KL from the reference, if there is one."""
    metrics = of_ratio(ratio_BT, batch.advantages_BT, clip, cuts_weight=cuts_weight)
    metrics |= of_sampler(old_BT, batch.sampler_logps_BT, importance_BT)
    metrics[run_directory.ENTROPY] = Mean(stats.entropy_BT)
    if batch.ref_logps_BT is not None:
        metrics[run_directory.KL] = Mean(k3(stats.logps_BT, batch.ref_logps_BT))
    return metrics


def of_ratio(ratio_BT: Array, advantages_BT: Array, clip: Clip, *, cuts_weight: bool = False) -> dict[str, Metric]:
    """Return the metrics of ratio and clip.

    A clip takes effect only where it lowers the objective: below for A < 0, above for A > 0, and for A < 0 above
    the bound of a dual clip. If a loss cuts only the weight (cispo), that is above its bound, whatever A is, and
    never below.
    """
    if cuts_weight:
        low_BT, high_BT = jnp.zeros_like(ratio_BT, bool), ratio_BT > clip.high
    else:
        low_BT = (ratio_BT < 1.0 - clip.low) & (advantages_BT < 0)
        high_BT = (ratio_BT > 1.0 + clip.high) & (advantages_BT > 0)
        if clip.dual is not None:
            high_BT |= (ratio_BT > clip.dual) & (advantages_BT < 0)
    return {
        "clip_fraction": Mean(low_BT | high_BT),
        "clip_fraction/low": Mean(low_BT),
        "clip_fraction/high": Mean(high_BT),
        "ratio": Mean(ratio_BT + 0.0 * advantages_BT),
    }


def of_sampler(old_BT: Array, sampler_BT: Array, importance_BT: Array) -> dict[str, Metric]:
    """Return how far apart sampler and trainer are on the same tokens."""
    difference_BT = jnp.abs(old_BT - sampler_BT)
    ratio_BT = jnp.exp(log_ratio(old_BT, sampler_BT))
    return {
        "sampler/difference": Mean(difference_BT),
        "sampler/difference/max": Largest(difference_BT),
        "sampler/outside": Mean((ratio_BT < NEAR[0]) | (ratio_BT > NEAR[1])),
        "sampler/kl": Mean(k3(sampler_BT, old_BT)),
        "sampler/weight": Mean(importance_BT),
        "sampler/weight/min": Smallest(importance_BT),
        "sampler/weight/max": Largest(importance_BT),
    }
