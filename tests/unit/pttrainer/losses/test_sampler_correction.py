"""The correction for another sampler: weights by hand, agreement, nothing left, rows without a token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pttrainer.losses import sampler_correction
from pttrainer.losses.sampler_correction import Correction

# Ratios 1.25, 0.5 and 3 in a sequence of three tokens, 1.5 and 1 in one of two; the last row has no token.
RATIOS = np.array([[1.25, 0.5, 3.0, 9.0], [1.5, 1.0, 9.0, 9.0], [9.0, 9.0, 9.0, 9.0]], np.float32)
MASK = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]], np.float32)
SAMPLER = np.full((3, 4), -2.0, np.float32)
OLD = SAMPLER + np.log(RATIOS)


def weights(mode: str, lowest: float = 0.0, highest: float = 2.0) -> np.ndarray:
    correction = Correction(mode, lowest, highest)
    return np.asarray(sampler_correction.weights(jnp.asarray(OLD), jnp.asarray(SAMPLER), jnp.asarray(MASK), correction))


@pytest.mark.parametrize(
    ("mode", "lowest", "highest", "wanted"),
    [
        ("token-truncate", 0.0, 2.0, [1.25, 0.5, 2.0, 1.5, 1.0]),
        ("token-truncate", 0.8, 1.2, [1.2, 0.8, 1.2, 1.2, 1.0]),
        ("token-mask", 0.0, 2.0, [1.25, 0.5, 0.0, 1.5, 1.0]),
        ("token-mask", 0.6, 1.3, [1.25, 0.0, 0.0, 0.0, 1.0]),
        ("sequence-truncate", 0.0, 2.0, [1.875, 1.875, 1.875, 1.5, 1.5]),
        ("sequence-truncate", 0.0, 1.6, [1.6, 1.6, 1.6, 1.5, 1.5]),
        ("sequence-mask", 0.0, 1.6, [0.0, 0.0, 0.0, 1.5, 1.5]),
        ("sequence-mask", 1.0, 1.2, [0.0, 0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_weights_by_hand(mode: str, lowest: float, highest: float, wanted: list[float]) -> None:
    np.testing.assert_allclose(weights(mode, lowest, highest)[MASK > 0], wanted, rtol=1e-6)


@pytest.mark.parametrize("mode", ["token-truncate", "token-mask", "sequence-truncate", "sequence-mask"])
def test_where_sampler_and_trainer_agree_every_weight_is_exactly_one(mode: str) -> None:
    given = (jnp.asarray(SAMPLER), jnp.asarray(SAMPLER), jnp.asarray(MASK), Correction(mode, 1.0, 1.0))
    np.testing.assert_array_equal(sampler_correction.weights(*given), np.ones_like(MASK))


@pytest.mark.parametrize("mode", ["token-truncate", "token-mask", "sequence-truncate", "sequence-mask"])
@pytest.mark.parametrize("gap", [-500.0, 500.0])
def test_samplers_that_are_far_away_have_finite_weights_within_the_bounds(mode: str, gap: float) -> None:
    got = sampler_correction.weights(jnp.asarray(SAMPLER + gap), jnp.asarray(SAMPLER), jnp.asarray(MASK),
                                     Correction(mode, 0.1, 3.0))  # fmt: skip
    bound = 0.0 if mode.endswith("mask") else 3.0 if gap > 0 else 0.1
    np.testing.assert_allclose(got[:2][MASK[:2] > 0], bound)


def test_only_sequences_that_were_bad_and_became_unlikely_are_left_out() -> None:
    """The policy is 0.3 nats a token below the sampler in the first two rows, 0.1 in the third, above in the fourth."""
    mask = jnp.asarray([[1.0, 1, 0]] * 4 + [[0.0, 0, 0]])
    gaps = jnp.asarray([[0.2, 0.4, 9.0], [0.2, 0.4, 9.0], [0.0, 0.2, 9.0], [-3.0, -1.0, 9.0], [9.0, 9.0, 9.0]])
    advantages = jnp.asarray([[1.0], [-1.0], [-1.0], [-1.0], [-1.0]]) * jnp.ones((5, 3))
    sampler = jnp.full((5, 3), -1.0)
    kept = sampler_correction.kept(sampler - gaps, sampler, advantages, mask, 0.25)
    np.testing.assert_array_equal(kept[:, 0], [1, 0, 1, 1, 1])

    def loss(logps: jax.Array) -> jax.Array:
        return jnp.sum(logps * sampler_correction.kept(logps, sampler, advantages, mask, 0.25) * mask)

    gradient = jax.grad(loss)(sampler - gaps)
    np.testing.assert_array_equal(gradient, mask * kept)  # no gradient through the decision
