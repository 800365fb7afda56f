"""Losses of preferences, one small function each: per pair, float32, minimised; the caller takes the mean.

Letters: P pairs. π is the policy's log-prob of an answer, ref the reference's (sums over the answer's tokens, its end
token included), |y| the answer's length in tokens, c the chosen answer, r the rejected, σ the logistic function.

    h = (π_c − ref_c) − (π_r − ref_r)

    sigmoid  −(1−ε)·log σ(βh) − ε·log σ(−βh)                    DPO 2305.18290; ε > 0: cDPO
    robust   [−(1−ε)·log σ(βh) + ε·log σ(−βh)] / (1 − 2ε)       2403.00409: unbiased where a share ε is mislabelled
    hinge    max(0, 1 − βh)                                     SLiC 2305.10425, with a reference as in RSO 2309.06657
    ipo      ((π_c − ref_c)/|c| − (π_r − ref_r)/|r| − 1/(2β))²  2310.12036, with the mean per token its authors used
    simpo    −log σ(β(π_c/|c| − π_r/|r|) − γ), ε as sigmoid     2405.14734; no reference
    reward   −log σ(s_c − s_r) + γ·(s_c + s_r)²                 1909.08593: Bradley-Terry on a reward model's scores s;
                                                                γ: centering, 2312.09244, equation 2
    orpo     −π_c/|c| − β·log σ(logit e^(π_c/|c|) − logit e^(π_r/|r|))    2403.07691; no reference

Degenerate case: before the first update h = 0, so sigmoid and robust are log 2, hinge is 1, ipo 1/(4β²); two answers
of equal score keep a gradient. Left out: other losses of the family (EXO, NCA, APO). KTO has no
pairs: `unpaired_preference`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

LARGEST_LOGP = -1e-6
"""Largest mean log-prob for odds: those of certainty are infinite."""


class Side(NamedTuple):
    """One answer of each pair: log-prob of policy and reference (0 without one), and token count. All [P]."""

    logps_P: Array
    ref_P: Array
    tokens_P: Array

    @property
    def total_P(self) -> Array:
        """Return the log-ratio to the reference."""
        return self.logps_P - self.ref_P

    @property
    def mean_P(self) -> Array:
        """Return the log-ratio to the reference, per token."""
        return self.total_P / jnp.maximum(self.tokens_P, 1.0)


class Coefficients(NamedTuple):
    """The coefficients of a loss: β, ε and γ."""

    beta: float
    smoothing: float = 0.0
    margin: float = 0.0


class Variant(NamedTuple):
    """The choices of a loss's paper: (chosen, rejected, coefficients) -> loss, β, γ.

    score: the quantity that is compared; β times it is the implicit reward in the metrics.
    """

    loss: Callable[[Side, Side, Coefficients], Array]
    score: Callable[[Side], Array]
    beta: float
    margin: float = 0.0


def total(side: Side) -> Array:
    """Return the score of a whole answer."""
    return side.total_P


def mean(side: Side) -> Array:
    """Return the score per token."""
    return side.mean_P


def sigmoid(chosen: Side, rejected: Side, coefficients: Coefficients) -> Array:
    """Return DPO's loss; with smoothing, conservative DPO's."""
    return _logistic(coefficients.beta * (chosen.total_P - rejected.total_P), coefficients.smoothing)


def robust(chosen: Side, rejected: Side, coefficients: Coefficients) -> Array:
    """Return a loss whose mean over pairs with a share ε of wrong labels is DPO's over the right labels."""
    h_P, share = coefficients.beta * (chosen.total_P - rejected.total_P), coefficients.smoothing
    right_P, wrong_P = -jax.nn.log_sigmoid(h_P), -jax.nn.log_sigmoid(-h_P)
    return ((1.0 - share) * right_P - share * wrong_P) / (1.0 - 2.0 * share)


def hinge(chosen: Side, rejected: Side, coefficients: Coefficients) -> Array:
    """Return the hinge loss: no gradient once a pair is separated by 1/β."""
    return jax.nn.relu(1.0 - coefficients.beta * (chosen.total_P - rejected.total_P))


def ipo(chosen: Side, rejected: Side, coefficients: Coefficients) -> Array:
    """Return the squared distance from a target margin, instead of a logistic that never saturates."""
    return jnp.square(chosen.mean_P - rejected.mean_P - 1.0 / (2.0 * coefficients.beta))


def simpo(chosen: Side, rejected: Side, coefficients: Coefficients) -> Array:
    """Return the logistic loss of the likelihood per token, as generation ranks answers; γ is the target margin."""
    return _logistic(
        coefficients.beta * (chosen.mean_P - rejected.mean_P) - coefficients.margin, coefficients.smoothing
    )


def orpo(chosen: Side, rejected: Side, coefficients: Coefficients) -> Array:
    """Return the chosen answer's negative log-likelihood plus β times the odds ratio's loss."""
    odds_P = _log_odds(chosen.mean_P) - _log_odds(rejected.mean_P)
    return -chosen.mean_P - coefficients.beta * jax.nn.log_sigmoid(odds_P)


def bradley_terry(chosen_P: Array, rejected_P: Array, centering: float) -> Array:
    """Return a reward model's loss from its scores, with a weight on the squared sum of a pair's."""
    return -jax.nn.log_sigmoid(chosen_P - rejected_P) + centering * jnp.square(chosen_P + rejected_P)


def _logistic(h_P: Array, smoothing: float) -> Array:
    return -(1.0 - smoothing) * jax.nn.log_sigmoid(h_P) - smoothing * jax.nn.log_sigmoid(-h_P)


def _log_odds(logps_P: Array) -> Array:
    """Return log(p / (1 − p)) from log p, exact near both ends."""
    logps_P = jnp.minimum(logps_P, LARGEST_LOGP)
    near_one = logps_P > -0.6931472
    return logps_P - jnp.where(near_one, jnp.log(-jnp.expm1(logps_P)), jnp.log1p(-jnp.exp(logps_P)))


VARIANTS: dict[str, Variant] = {
    "sigmoid": Variant(sigmoid, total, 0.1),
    "robust": Variant(robust, total, 0.1),
    "hinge": Variant(hinge, total, 0.1),
    "ipo": Variant(ipo, mean, 0.1),
    "simpo": Variant(simpo, mean, 2.0, margin=1.0),
    "orpo": Variant(orpo, mean, 0.1),
}
"""Losses by name in `spec.algorithm.dpo.loss`."""
