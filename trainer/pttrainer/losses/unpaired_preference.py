"""Losses of answers that are labelled one by one: per answer, float32, minimised; the caller takes the mean.

Letters: B answers. π is the policy's log-prob of an answer, ref the reference's (sums over the answer's tokens), σ the
logistic function, s = 1 for a desirable answer and −1 for an undesirable one, λ the weight of its label.

    kto        λ·(1 − σ(s·β·(π − ref − z)))     2402.01306, equation 7; z: the KL to the reference, estimated (`kl`)
    apo-zero   λ·(1 − σ(s·β·(π − ref)))         2408.06266, equation 7, its unpaired form: z = 0

No gradient flows through z. Degenerate case: before the first update π = ref and z = 0, so every answer's loss is λ/2;
answers far on either side of z teach nothing, unlike DPO's, whose wrong side keeps its gradient.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


class Coefficients(NamedTuple):
    """The coefficients of a loss: β and the weights λ of both labels."""

    beta: float
    desirable: float = 1.0
    undesirable: float = 1.0


def loss(ratios_B: Array, desirable_B: Array, kl_B: Array | float, coefficients: Coefficients) -> Array:
    """Return each answer's loss. ratios_B: π − ref; desirable_B: 1 for good answers, else 0; kl_B: z."""
    score_B = coefficients.beta * (ratios_B - kl_B)
    is_good_B = desirable_B > 0
    weight_B = jnp.where(is_good_B, coefficients.desirable, coefficients.undesirable)
    return weight_B * jax.nn.sigmoid(jnp.where(is_good_B, -score_B, score_B))  # 1 − σ(x) = σ(−x), exact far out


def kl(ratios_B: np.ndarray) -> float:
    """Return z from π − ref of prompts with answers to other prompts: their mean, at least 0."""
    return max(float(np.mean(ratios_B, dtype=np.float64)), 0.0)
