"""From rewards to advantages: pure functions of `rewards_PG`.

Letters: P prompts, G samples of a prompt (a group). A sample without a reward is NaN: it is left out of every
mean and deviation and its advantage is 0. All in float64 on the host; deviations have n − 1 in the
denominator. Every group's advantages sum to 0, and a group whose rewards are all equal gets exactly 0.

Sources: group arXiv 2402.03300; centered 2503.20783; leave-one-out 2402.14740; batch 2501.03262.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

EPSILON = 1e-4
"""Added to deviations."""


def group(rewards_PG: np.ndarray) -> np.ndarray:
    """Return (r − mean) / (std + 1e-4), with mean and std of the group."""
    centered_PG = centered(rewards_PG)
    counts_P1 = _counts(rewards_PG)
    variance_P1 = np.sum(centered_PG**2, axis=1, keepdims=True) / np.maximum(counts_P1 - 1, 1)
    return np.asarray(centered_PG / (np.sqrt(variance_P1) + EPSILON))


def centered(rewards_PG: np.ndarray) -> np.ndarray:
    """Return r − mean of the group."""
    rewards_PG = np.asarray(rewards_PG, np.float64)
    there_PG = ~np.isnan(rewards_PG)
    mean_P1 = np.sum(rewards_PG, axis=1, keepdims=True, where=there_PG) / np.maximum(_counts(rewards_PG), 1)
    # Rounding must not give a group without spread an advantage.
    return np.where(there_PG & has_spread(rewards_PG)[:, None], rewards_PG - mean_P1, 0.0)


def leave_one_out(rewards_PG: np.ndarray) -> np.ndarray:
    """Return r − mean of the others of the group; 0 for a sample without others."""
    counts_P1 = _counts(rewards_PG)
    return np.asarray(centered(rewards_PG) * counts_P1 / np.maximum(counts_P1 - 1, 1))


def batch(rewards_PG: np.ndarray) -> np.ndarray:
    """Return (r − mean of the group) / (std over the whole batch + 1e-4)."""
    rewards = np.asarray(rewards_PG, np.float64)
    present = rewards[~np.isnan(rewards)]
    std = float(np.std(present, ddof=1)) if present.size > 1 else 0.0
    return np.asarray(centered(rewards_PG) / (std + EPSILON))


def combined(rewards_KPG: Sequence[np.ndarray], weights_K: Sequence[float]) -> np.ndarray:
    """Return Σ weight · z-score of each of K rewards in its group (2601.05242).

    A reward counts by its weight, whatever its scale. A sample that lacks one of the rewards gets none, and is left
    out of the others' means, too.
    """
    is_missing_PG = np.any(np.isnan(rewards_KPG), axis=0)
    scored_KPG = [group(np.where(is_missing_PG, np.nan, rewards_PG)) for rewards_PG in rewards_KPG]
    total_PG = sum((w * x for w, x in zip(weights_K, scored_KPG, strict=True)), np.zeros(is_missing_PG.shape))
    return np.where(is_missing_PG, np.nan, total_PG)


ESTIMATORS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "group": group,
    "centered": centered,
    "leave-one-out": leave_one_out,
    "batch": batch,
}
"""Estimators by name in `spec.algorithm.grpo.advantage`."""


class Spread(NamedTuple):
    """Groups that teach nothing, because all their rewards are equal: above 0 (all right) or not (all wrong)."""

    all_right: int
    all_wrong: int
    groups: int


def zero_spread(rewards_PG: np.ndarray) -> Spread:
    """Count the groups without spread; a group without any reward is neither right nor wrong."""
    rewards_PG = np.asarray(rewards_PG, np.float64)
    flat_P = ~has_spread(rewards_PG) & (_counts(rewards_PG)[:, 0] > 0)
    best_P = np.max(rewards_PG, axis=1, initial=-np.inf, where=~np.isnan(rewards_PG))
    return Spread(int(np.sum(flat_P & (best_P > 0))), int(np.sum(flat_P & (best_P <= 0))), len(rewards_PG))


def _counts(rewards_PG: np.ndarray) -> np.ndarray:
    return np.asarray(np.sum(~np.isnan(rewards_PG), axis=1, keepdims=True))


def has_spread(rewards_PG: np.ndarray) -> np.ndarray:
    """Return True for groups whose rewards are not all equal, [P]."""
    there_PG = ~np.isnan(rewards_PG)
    high = np.max(rewards_PG, axis=1, initial=-np.inf, where=there_PG)
    low = np.min(rewards_PG, axis=1, initial=np.inf, where=there_PG)
    return np.asarray(high > low)
