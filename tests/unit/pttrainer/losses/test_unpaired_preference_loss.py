"""Losses of labelled answers: values by hand, gradients by the formula, extreme ratios, the KL's bound."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pttrainer.losses import unpaired_preference
from pttrainer.losses.unpaired_preference import Coefficients

LABELS = np.array([1.0, 0.0, 1.0, 0.0])
RATIOS = np.array([1.5, 0.5, -2.0, -3.0])
WEIGHTED = Coefficients(0.4, 1.3, 0.7)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def of(ratios_B: object, kl: float, coefficients: Coefficients = WEIGHTED) -> jax.Array:
    return unpaired_preference.loss(jnp.asarray(ratios_B, jnp.float32), jnp.asarray(LABELS), kl, coefficients)


def test_losses_are_those_of_the_paper_by_hand() -> None:
    wanted = [
        1.3 * (1 - sigmoid(0.4 * (1.5 - 0.25))),
        0.7 * (1 - sigmoid(0.4 * (0.25 - 0.5))),
        1.3 * (1 - sigmoid(0.4 * (-2.0 - 0.25))),
        0.7 * (1 - sigmoid(0.4 * (0.25 + 3.0))),
    ]
    np.testing.assert_allclose(of(RATIOS, 0.25), wanted, rtol=1e-6)


def test_gradients_are_those_of_the_formula() -> None:
    gradient = jax.grad(lambda ratios_B: jnp.sum(of(ratios_B, 0.25)))(jnp.asarray(RATIOS))
    slopes = [sigmoid(0.4 * (r - 0.25)) * sigmoid(0.4 * (0.25 - r)) for r in RATIOS]
    signed = [weight * 0.4 * slope for weight, slope in zip((-1.3, 0.7, -1.3, 0.7), slopes, strict=True)]
    np.testing.assert_allclose(gradient, signed, rtol=1e-5)


def test_equal_policies_lose_half_of_each_weight() -> None:
    np.testing.assert_allclose(of(np.zeros(4), 0.0), [0.65, 0.35, 0.65, 0.35], rtol=1e-6)


@pytest.mark.parametrize("far", [1e3, -1e3, 1e30, -1e30])
def test_answers_far_from_the_reference_have_finite_losses_and_no_gradient(far: float) -> None:
    loss, gradient = jax.value_and_grad(lambda x: jnp.sum(of(x * jnp.ones(4), 0.0)))(jnp.float32(far))
    assert float(loss) == pytest.approx(1.4 if far > 0 else 2.6)
    assert float(gradient) == 0.0


def test_an_estimate_of_the_kl_is_the_mean_and_never_negative() -> None:
    assert unpaired_preference.kl(np.array([3.0, -1.0, 1.0])) == 1.0
    assert unpaired_preference.kl(np.array([-3.0, 1.0])) == 0.0
