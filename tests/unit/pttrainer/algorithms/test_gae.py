"""Generalised advantages and whitening: values by hand, the ends of λ, what is no step, what may not divide by zero."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pttrainer.algorithms.credit_assignment import gae

MASK = np.array([[0, 1, 1, 0, 1, 0]], np.float32)  # prompt, two tokens, a tool's token, the last token, padding
VALUES = np.array([[9.0, 0.5, 0.25, 9.0, 0.75, 9.0]])
REWARDS = np.array([[0.0, 0.0, -0.1, 0.0, 1.0, 0.0]])


def test_advantages_and_returns_are_those_computed_by_hand_and_pass_over_the_tokens_of_tools() -> None:
    """γ = 0.9, λ = 0.5. δ: 1 − 0.75 = 0.25; −0.1 + 0.9·0.75 − 0.25 = 0.325; 0.9·0.25 − 0.5 = −0.275."""
    advantages, returns = gae.estimate(REWARDS, VALUES, MASK, 0.9, 0.5)
    third, second = 0.25, 0.325 + 0.45 * 0.25
    first = -0.275 + 0.45 * second
    np.testing.assert_allclose(advantages, [[0, first, second, 0, third, 0]], rtol=1e-12)
    np.testing.assert_allclose(returns, [[0, first + 0.5, second + 0.25, 0, 1.0, 0]], rtol=1e-12)


def test_with_lambda_1_an_advantage_is_the_reward_to_come_less_the_value() -> None:
    advantages, returns = gae.estimate(REWARDS, VALUES, MASK, 1.0, 1.0)
    np.testing.assert_allclose(returns, [[0, 0.9, 0.9, 0, 1.0, 0]], rtol=1e-12)
    np.testing.assert_allclose(advantages, [[0, 0.4, 0.65, 0, 0.25, 0]], rtol=1e-12)


def test_with_lambda_0_an_advantage_is_one_step_ahead() -> None:
    advantages, _ = gae.estimate(REWARDS, VALUES, MASK, 0.9, 0.0)
    np.testing.assert_allclose(advantages, [[0, -0.275, 0.325, 0, 0.25, 0]], rtol=1e-12)


def test_one_token_has_its_reward_less_its_value() -> None:
    advantages, returns = gae.estimate(np.array([[0.7]]), np.array([[0.2]]), np.ones((1, 1)), 0.9, 0.95)
    np.testing.assert_allclose((advantages[0, 0], returns[0, 0]), (0.5, 0.7))


def test_where_a_completion_was_cut_the_value_of_what_follows_counts_and_where_it_ended_nothing() -> None:
    """Two rows alike; the second one goes on in a state that is worth 2."""
    mask, values = np.ones((2, 2)), np.full((2, 2), 0.5)
    rewards = np.array([[0.0, 1.0], [0.0, 1.0]])
    advantages, returns = gae.estimate(rewards, values, mask, 0.9, 0.5, np.array([0.0, 2.0]))
    np.testing.assert_allclose(advantages[:, 1], [0.5, 0.5 + 0.9 * 2.0])
    np.testing.assert_allclose(advantages[:, 0], [-0.05 + 0.45 * 0.5, -0.05 + 0.45 * 2.3])
    np.testing.assert_allclose(returns, advantages + 0.5)


@given(st.integers(0, 2**31), st.integers(0, 5), st.integers(0, 5))
def test_padding_prompts_and_the_order_of_rows_change_nothing(seed: int, before: int, after: int) -> None:
    random = np.random.default_rng(seed)
    rewards, values = random.normal(size=(3, 4)), random.normal(size=(3, 4))
    mask = (random.random((3, 4)) < 0.6).astype(np.float32)
    plain, _ = gae.estimate(rewards, values, mask, 0.97, 0.9)
    wide = [np.pad(x, ((0, 0), (before, after)), constant_values=fill) for x, fill in ((rewards, 7), (values, 7))]
    padded, _ = gae.estimate(*wide, np.pad(mask, ((0, 0), (before, after))), 0.97, 0.9)
    np.testing.assert_array_equal(padded[:, before : before + 4], plain)
    turned, _ = gae.estimate(rewards[::-1], values[::-1], mask[::-1], 0.97, 0.9)
    np.testing.assert_array_equal(turned[::-1], plain)


def test_the_reward_stands_at_the_last_token_that_the_policy_said_with_its_fraction() -> None:
    mask = np.array([[0, 1, 1, 0], [1, 0, 1, 0], [0, 0, 0, 0]], np.float32)
    rewards = gae.token_rewards(np.array([0.5, 1, 3]), mask)
    np.testing.assert_array_equal(rewards, [[0, 0, 0.5, 0], [0, 0, 1, 0], [0, 0, 0, 0]])
    of_integers = gae.token_rewards(np.array([1, 0, 0]), mask, np.full((3, 4), 0.5), 0.1)
    np.testing.assert_allclose(of_integers, [[0, -0.05, 0.95, 0], [-0.05, 0, -0.05, 0], [0, 0, 0, 0]])


def test_a_completion_without_a_reward_has_none_at_any_token() -> None:
    rewards = gae.token_rewards(np.array([np.nan, 1.0]), np.ones((2, 2)), np.ones((2, 2)), 0.1)
    np.testing.assert_allclose(rewards, [[0, 0], [-0.1, 0.9]])


@pytest.mark.parametrize("count", [0, 1])
def test_whitening_survives_one_valid_token_and_none(count: int) -> None:
    """Mistake 15 of peers: with one token n − 1 is 0, and TRL 0.11's masked_var divides by it."""
    mask = np.zeros((2, 3))
    mask.flat[:count] = 1
    with np.errstate(all="raise"):
        whitened = gae.whiten(np.full((2, 3), 5.0), mask)
    np.testing.assert_array_equal(whitened, np.zeros((2, 3)))


def test_whitening_shifts_and_scales_over_the_tokens_that_count() -> None:
    """1, 3, 5: mean 3, variance with n − 1 is 4."""
    whitened = gae.whiten(np.array([[1.0, 99.0, 3.0], [5.0, -7.0, 99.0]]), np.array([[1, 0, 1], [1, 0, 0]]))
    np.testing.assert_allclose(whitened, [[-1, 0, 0], [1, 0, 0]], rtol=1e-8)


def test_equal_advantages_whiten_to_nothing() -> None:
    np.testing.assert_array_equal(gae.whiten(np.full((1, 4), 0.1), np.ones((1, 4))), np.zeros((1, 4)))


def test_explained_variance_is_1_for_a_perfect_critic_and_0_for_one_that_says_the_same_everywhere() -> None:
    returns, mask = np.array([[1.0, 2.0, 3.0]]), np.ones((1, 3))
    assert gae.explained_variance(returns + 5.0, returns, mask) == 1.0
    assert gae.explained_variance(np.zeros((1, 3)), returns, mask) == 0.0
    assert gae.explained_variance(-returns, returns, mask) == -3.0
    assert gae.explained_variance(returns, np.ones((1, 3)), mask) == 0.0
    assert gae.explained_variance(returns, returns, np.zeros((1, 3))) == 0.0
