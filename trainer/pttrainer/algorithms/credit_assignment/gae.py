"""Generalised advantage estimation (arXiv 1506.02438) over the tokens that a policy sampled, in float64 on the host.

Letters: N rows, T tokens. A row's tokens that count (mask 1) are its steps, wherever they are: tokens of the prompt, of
tools and of padding are no steps, and the state after a step is the one before the row's next step.

    δ_t = r_t + γ·V_{t+1} − V_t          A_t = δ_t + γ·λ·A_{t+1}          return_t = A_t + V_t

V after a row's last step is `after_N`: 0 if the episode ended there, the critic's value if it was cut.

Left out: advantages of whole samples (`advantages`). Degenerate cases: with γ = λ = 1 A_t is the remaining reward −
V_t; with λ = 0 it is δ_t; a row without steps gets zeros; whitening one token, or equal ones, gives 0.
"""

import numpy as np

EPSILON = 1e-8
"""Added to the variance that whitening divides by."""


def token_rewards(
    rewards_N: np.ndarray, mask_NT: np.ndarray, log_ratio_NT: np.ndarray | None = None, coefficient: float = 0.0
) -> np.ndarray:
    """Return a row's reward at its last step, and −coefficient · (log π − log π_ref) at every step, as floats.

    A row without a reward (NaN) has no reward at any step.
    """
    is_step_NT, rewards_N = np.asarray(mask_NT) > 0, np.asarray(rewards_N, np.float64)
    rewards_NT = np.zeros(is_step_NT.shape, np.float64)
    if log_ratio_NT is not None and coefficient:
        rewards_NT -= coefficient * np.where(is_step_NT, log_ratio_NT, 0.0)
    rows = np.flatnonzero(is_step_NT.any(axis=1))
    last = is_step_NT.shape[1] - 1 - np.argmax(is_step_NT[:, ::-1], axis=1)
    rewards_NT[rows, last[rows]] += rewards_N[rows]
    return np.where(np.isnan(rewards_N)[:, None], 0.0, rewards_NT)


def estimate(
    rewards_NT: np.ndarray,
    values_NT: np.ndarray,
    mask_NT: np.ndarray,
    gamma: float,
    gae_lambda: float,
    after_N: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (advantages, returns), both 0 where the mask is 0."""
    is_step_NT, values_NT = np.asarray(mask_NT) > 0, np.asarray(values_NT, np.float64)
    N, T = is_step_NT.shape
    advantages_NT = np.zeros((N, T), np.float64)
    ahead_N = np.zeros(N)
    next_N = np.zeros(N) if after_N is None else np.asarray(after_N, np.float64)
    for t in reversed(range(T)):
        is_step_N, value_N = is_step_NT[:, t], values_NT[:, t]
        delta_N = rewards_NT[:, t] + gamma * next_N - value_N
        ahead_N = np.where(is_step_N, delta_N + gamma * gae_lambda * ahead_N, ahead_N)
        next_N = np.where(is_step_N, value_N, next_N)
        advantages_NT[:, t] = np.where(is_step_N, ahead_N, 0.0)
    return advantages_NT, np.where(is_step_NT, advantages_NT + values_NT, 0.0)


def whiten(advantages_NT: np.ndarray, mask_NT: np.ndarray) -> np.ndarray:
    """Return (A − mean) / √(variance + 1e-8) over all tokens that count, variance with n − 1; 0 elsewhere.

    A single token has no deviation to divide by: it gets 0, as equal ones do.
    """
    counts_NT = np.asarray(mask_NT) > 0
    n = int(counts_NT.sum())
    mean = float(np.sum(advantages_NT, where=counts_NT)) / max(n, 1)
    centred_NT = np.where(counts_NT, advantages_NT - mean, 0.0)
    variance = float(np.sum(centred_NT**2)) / max(n - 1, 1)
    return np.asarray(centred_NT / np.sqrt(variance + EPSILON))


def explained_variance(values_NT: np.ndarray, returns_NT: np.ndarray, mask_NT: np.ndarray) -> float:
    """Return 1 − var(return − V) / var(return): 1 for a perfect critic, 0 for a constant one, below 0 for worse."""
    counts_NT = np.asarray(mask_NT) > 0
    if not counts_NT.any():
        return 0.0
    returns = np.asarray(returns_NT, np.float64)[counts_NT]
    spread = float(np.var(returns))
    return 1.0 - float(np.var(returns - np.asarray(values_NT)[counts_NT])) / spread if spread > EPSILON else 0.0
