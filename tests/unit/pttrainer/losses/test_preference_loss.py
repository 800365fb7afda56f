"""Losses of preferences: values by hand, gradients against formulas and finite differences, degenerate cases."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pttrainer.losses.loss_traits import WITHOUT_REFERENCE
from pttrainer.losses.preference import VARIANTS, Coefficients, Side

LOGPS = np.array([-3.0, -8.0]), np.array([-5.0, -4.0])
REFS = np.array([-4.0, -7.5]), np.array([-4.5, -6.0])
TOKENS = np.array([3.0, 4.0]), np.array([2.0, 5.0])
NAMES = sorted(VARIANTS)


def of(name: str, chosen: Any, rejected: Any, coefficients: Coefficients, refs: Any = REFS) -> Any:
    sides = (
        Side(jnp.asarray(logps), jnp.asarray(ref), jnp.asarray(tokens))
        for logps, ref, tokens in zip((chosen, rejected), refs, TOKENS, strict=True)
    )
    return VARIANTS[name].loss(*sides, coefficients)


def no_refs(name: str) -> Any:
    return REFS if name not in WITHOUT_REFERENCE else (np.zeros(2), np.zeros(2))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def log_odds(logp: float) -> float:
    return logp - math.log(1 - math.exp(logp))


def by_hand(name: str, coefficients: Coefficients) -> list[float]:
    """The formulas of the papers, written out for the two pairs: h is 1.5 and −2.5."""
    beta, share, margin = coefficients
    losses = []
    for h, ratios, means in ((1.5, (1 / 3, -0.5 / 2), (-1.0, -2.5)), (-2.5, (-0.5 / 4, 2 / 5), (-2.0, -0.8))):
        right, wrong = -math.log(sigmoid(beta * h)), -math.log(sigmoid(-beta * h))
        lead = beta * (means[0] - means[1]) - margin
        losses.append(
            {
                "sigmoid": (1 - share) * right + share * wrong,
                "robust": ((1 - share) * right - share * wrong) / (1 - 2 * share),
                "hinge": max(0.0, 1 - beta * h),
                "ipo": (ratios[0] - ratios[1] - 1 / (2 * beta)) ** 2,
                "simpo": -(1 - share) * math.log(sigmoid(lead)) - share * math.log(sigmoid(-lead)),
                "orpo": -means[0] - beta * math.log(sigmoid(log_odds(means[0]) - log_odds(means[1]))),
            }[name]
        )
    return losses


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("coefficients", [Coefficients(0.1), Coefficients(0.5, 0.0, 0.7), Coefficients(2.0, 0.2, 1.0)])
def test_losses_by_hand(name: str, coefficients: Coefficients) -> None:
    with jax.enable_x64(True):
        losses = of(name, *LOGPS, coefficients, no_refs(name))
    np.testing.assert_allclose(losses, by_hand(name, coefficients), rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_agree_with_finite_differences(name: str) -> None:
    coefficients = Coefficients(0.7, 0.1, 0.5)

    def total(chosen: Any, rejected: Any) -> Any:
        return jnp.sum(of(name, chosen, rejected, coefficients, no_refs(name)))

    with jax.enable_x64(True):
        gradients = jax.grad(total, argnums=(0, 1))(*(jnp.asarray(x) for x in LOGPS))
        for side in (0, 1):
            for pair in (0, 1):
                step = np.zeros((2, 2))
                step[side, pair] = 1e-6
                up, down = (float(total(*(np.asarray(LOGPS) + sign * step))) for sign in (1, -1))
                np.testing.assert_allclose(gradients[side][pair], (up - down) / 2e-6, rtol=1e-5, atol=1e-9)


def test_the_gradient_of_dpo_is_the_papers() -> None:
    """−β·σ(−βh) to the chosen answer, its opposite to the rejected one."""
    chosen, rejected = jax.grad(lambda c, r: jnp.sum(of("sigmoid", c, r, Coefficients(0.1))), argnums=(0, 1))(
        *(jnp.asarray(x) for x in LOGPS)
    )
    wanted = [-0.1 * sigmoid(-0.1 * h) for h in (1.5, -2.5)]
    np.testing.assert_allclose(chosen, wanted, rtol=1e-6)
    np.testing.assert_allclose(rejected, np.negative(wanted), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "value", "slope"),
    [("sigmoid", math.log(2), 0.05), ("robust", math.log(2), 0.05), ("hinge", 1.0, 0.1), ("ipo", 25.0, 10.0)],
)
def test_where_policy_and_reference_are_one_the_loss_is_known_and_still_teaches(
    name: str, value: float, slope: float
) -> None:
    """The first step. ipo's slope is per token of the chosen answer's mean."""
    loss = of(name, *REFS, Coefficients(0.1))
    np.testing.assert_allclose(loss, [value, value], rtol=1e-6)
    gradient = jax.grad(lambda chosen: jnp.sum(of(name, chosen, REFS[1], Coefficients(0.1))))(jnp.asarray(REFS[0]))
    np.testing.assert_allclose(gradient, -slope / (TOKENS[0] if name == "ipo" else 1.0), rtol=1e-6)


def test_robust_is_dpo_on_average_over_labels_that_are_wrong_at_the_stated_rate() -> None:
    share, coefficients = 0.3, Coefficients(0.8, 0.3)
    straight, flipped = of("robust", *LOGPS, coefficients), _flipped("robust", coefficients)
    np.testing.assert_allclose(
        (1 - share) * straight + share * flipped, of("sigmoid", *LOGPS, Coefficients(0.8)), rtol=1e-5
    )


def _flipped(name: str, coefficients: Coefficients) -> Any:
    sides = [Side(*(jnp.asarray(x) for x in part)) for part in zip(LOGPS, REFS, TOKENS, strict=True)]
    return VARIANTS[name].loss(sides[1], sides[0], coefficients)


def test_a_hinge_that_is_far_enough_apart_is_done() -> None:
    gradient = jax.grad(lambda chosen: jnp.sum(of("hinge", chosen, LOGPS[1], Coefficients(1.0))))(jnp.asarray(LOGPS[0]))
    np.testing.assert_array_equal(gradient, [0.0, -1.0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chosen", [-1e5, -1e-9, 0.0])
@pytest.mark.parametrize("rejected", [-1e5, -1e-9, 0.0])
def test_certain_and_impossible_answers_stay_finite(name: str, chosen: float, rejected: float) -> None:
    value, gradient = jax.value_and_grad(
        lambda c: jnp.sum(of(name, c, np.full(2, rejected, np.float32), Coefficients(0.1), no_refs(name)))
    )(jnp.full(2, chosen, jnp.float32))
    assert np.isfinite(value)
    assert np.all(np.isfinite(gradient))


def test_only_losses_with_a_reference_use_it_and_only_means_know_lengths() -> None:
    for name in VARIANTS:
        moved = of(name, *LOGPS, Coefficients(0.3), (REFS[0] + 1.0, REFS[1]))
        assert (not np.allclose(moved, of(name, *LOGPS, Coefficients(0.3)))) or name in WITHOUT_REFERENCE
    assert set(WITHOUT_REFERENCE) < set(VARIANTS)
    assert {name: variant.beta for name, variant in VARIANTS.items()} == {
        "sigmoid": 0.1, "robust": 0.1, "hinge": 0.1, "ipo": 0.1, "simpo": 2.0, "orpo": 0.1,
    }  # fmt: skip
