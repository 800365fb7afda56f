"""Advantages: cases computed by hand, and what must hold for all rewards."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pttrainer.algorithms.credit_assignment import advantages
from pttrainer.algorithms.credit_assignment.advantages import ESTIMATORS, zero_spread

NAN = float("nan")


def test_group_is_the_z_score_with_n_minus_one() -> None:
    # mean 1.5, deviations ±0.5 and ±1.5 → variance 5/3 with n − 1
    got = advantages.group(np.array([[0.0, 1.0, 2.0, 3.0]]))
    std = (5 / 3) ** 0.5
    np.testing.assert_allclose(
        got, [[-1.5 / (std + 1e-4), -0.5 / (std + 1e-4), 0.5 / (std + 1e-4), 1.5 / (std + 1e-4)]]
    )


def test_centered_subtracts_the_mean_of_the_group() -> None:
    np.testing.assert_allclose(advantages.centered(np.array([[1.0, 0.0, 0.0, 0.0]])), [[0.75, -0.25, -0.25, -0.25]])


def test_leave_one_out_subtracts_the_mean_of_the_others() -> None:
    np.testing.assert_allclose(advantages.leave_one_out(np.array([[1.0, 0.0, 2.0]])), [[0.0, -1.5, 1.5]])


def test_batch_divides_by_the_deviation_of_all_rewards() -> None:
    got = advantages.batch(np.array([[0.0, 1.0], [1.0, 1.0]]))
    np.testing.assert_allclose(got, np.array([[-0.5, 0.5], [0.0, 0.0]]) / (0.5 + 1e-4))


def test_fractional_rewards_keep_their_fraction_whatever_their_type() -> None:
    rewards = np.array([[0.5, 1.7]], np.float32)
    np.testing.assert_allclose(advantages.centered(rewards), [[-0.6, 0.6]], atol=1e-6)
    np.testing.assert_allclose(advantages.centered(np.array([[0, 1]])), [[-0.5, 0.5]])


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_equal_rewards_give_exactly_zero(name: str) -> None:
    assert np.all(ESTIMATORS[name](np.full((2, 7), 0.1)) == 0.0)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_a_sample_without_reward_gets_zero_and_changes_nobody_else(name: str) -> None:
    whole = ESTIMATORS[name](np.array([[0.0, 1.0, 1.0]]))
    holed = ESTIMATORS[name](np.array([[0.0, NAN, 1.0, 1.0]]))
    assert holed[0, 1] == 0.0
    np.testing.assert_allclose(np.delete(holed, 1, axis=1), whole)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_groups_with_one_or_no_reward_get_zero(name: str) -> None:
    assert np.all(ESTIMATORS[name](np.array([[NAN, 1.0], [NAN, NAN]])) == 0.0)


rewards_with_holes = hnp.arrays(
    np.float64, st.tuples(st.integers(1, 4), st.integers(2, 6)), elements=st.one_of(st.floats(-100, 100), st.just(NAN))
)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@given(rewards_PG=rewards_with_holes)
def test_advantages_of_a_group_sum_to_zero(name: str, rewards_PG: np.ndarray) -> None:
    got = ESTIMATORS[name](rewards_PG)
    assert np.all(np.isfinite(got))
    np.testing.assert_allclose(got.sum(axis=1), 0.0, atol=1e-8 * max(1.0, np.abs(got).max()))


@given(rewards_PG=rewards_with_holes, shift=st.floats(-10, 10))
def test_a_constant_added_to_all_rewards_changes_no_advantage(rewards_PG: np.ndarray, shift: float) -> None:
    moved = advantages.centered(rewards_PG + shift)
    np.testing.assert_allclose(moved, advantages.centered(rewards_PG), atol=1e-10)


def test_of_several_rewards_each_counts_by_its_weight_and_not_by_its_scale() -> None:
    small, large = np.array([[0.0, 1.0, 2.0]]), np.array([[10.0, 10.0, 40.0]])
    combined = advantages.combined([small, large], [1.0, 2.0])
    by_hand = np.array([[-1.0, 0.0, 1.0]]) / 1.0001 + 2 * np.array([[-10.0, -10.0, 20.0]]) / (np.sqrt(300.0) + 1e-4)
    np.testing.assert_allclose(combined, by_hand, rtol=1e-12)
    np.testing.assert_allclose(advantages.combined([small, 1000 * large], [1.0, 2.0]), combined, rtol=1e-4)


def test_a_sample_that_lacks_one_reward_is_left_out_of_the_others_z_scores() -> None:
    nan = float("nan")
    combined = advantages.combined([np.array([[0.0, 1.0, 9.0]]), np.array([[3.0, 3.0, nan]])], [1.0, 1.0])
    without = advantages.combined([np.array([[0.0, 1.0]]), np.array([[3.0, 3.0]])], [1.0, 1.0])
    np.testing.assert_array_equal(combined, [[*without[0], nan]])


def test_groups_without_spread_are_counted_right_and_wrong_apart() -> None:
    rewards_PG = np.array([[1.0, 1.0], [0.0, 0.0], [0.0, 1.0], [1.0, NAN], [NAN, NAN]])
    assert zero_spread(rewards_PG) == (2, 1, 5)
