"""Weights of the reductions, by hand, and the properties that make them safe to split."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pttrainer.data import loss_weights

MASK = np.array([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]], np.float32)


def test_token_mean_counts_every_token_once() -> None:
    np.testing.assert_allclose(loss_weights.token_mean(MASK), MASK / 6)


def test_sequence_mean_counts_every_row_once_and_empty_rows_not_at_all() -> None:
    np.testing.assert_allclose(loss_weights.sequence_mean(MASK).sum(axis=1), [0.5, 0.5, 0.0])
    np.testing.assert_allclose(loss_weights.sequence_mean(MASK)[0], [0.25, 0.25, 0, 0])


def test_fixed_length_divides_by_what_could_have_been() -> None:
    np.testing.assert_allclose(loss_weights.fixed_length(MASK, sequences=3, max_new_tokens=10), MASK / 30)


def test_an_empty_mask_gives_zero_weights() -> None:
    empty = np.zeros((2, 3), np.float32)
    for weights in (
        loss_weights.token_mean(empty),
        loss_weights.sequence_mean(empty),
        loss_weights.fixed_length(empty, 0, 0),
    ):
        np.testing.assert_array_equal(weights, empty)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_padding_a_batch_changes_no_weight(lengths: list[int]) -> None:
    mask = np.array([[t < n for t in range(5)] for n in lengths], np.float32)
    wider = np.pad(mask, ((0, 2), (0, 3)))
    for weights in (loss_weights.token_mean, loss_weights.sequence_mean):
        np.testing.assert_array_equal(weights(wider)[: len(lengths), :5], weights(mask))


def test_metrics_of_parts_add_up_to_those_of_the_whole() -> None:
    values = np.array([[1.0, 5.0, 9.0, 9.0], [2.0, -3.0, 4.0, 1.0], [7.0, 7.0, 7.0, 7.0]])
    for kind, wanted in ((loss_weights.Mean, 10 / 6), (loss_weights.Largest, 5.0), (loss_weights.Smallest, -3.0)):
        parts = [loss_weights.partial(kind(jnp.array(values[i : i + 1])), jnp.array(MASK[i : i + 1])) for i in range(3)]
        stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *parts)
        np.testing.assert_allclose(loss_weights.finish(stacked), wanted, rtol=1e-6)
