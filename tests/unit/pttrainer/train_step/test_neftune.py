"""Noise on embeddings: its size, whom it belongs to, and that it is the same however a step is computed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.builders.trainer import steps as build

from ptapi.spec import Training
from pttrainer.train_step import neftune
from pttrainer.train_step.neftune import Noise

SEGMENTS = jnp.array([[1] * 12 + [2] * 3 + [0], [1] * 4 + [0] * 12], jnp.int32)
D = 64


def noise(step: int = 3, alpha: float = 5.0, seed: int = 0, rows: slice = slice(None)) -> np.ndarray:
    batch = neftune.numbered(build.batch()._replace(tokens_BT=jnp.zeros((2, 16), jnp.int32), segment_ids_BT=SEGMENTS))
    part = batch._replace(segment_ids_BT=SEGMENTS[rows], row_BT=batch.row_BT[rows])
    zeros = jnp.zeros((*part.segment_ids_BT.shape, D))
    return np.asarray(neftune.added(Noise(alpha, seed), jnp.int32(step), part)(zeros))


def test_noise_is_uniform_up_to_alpha_over_the_root_of_length_times_width() -> None:
    drawn = noise()
    for row, tokens, length in ((0, slice(0, 12), 12), (0, slice(12, 15), 3), (1, slice(0, 4), 4)):
        limit = 5.0 / np.sqrt(length * D)
        of = drawn[row, tokens] / limit
        assert 0.97 < np.abs(of).max() <= 1.0
        assert np.abs(of).mean() == pytest.approx(0.5, abs=0.06)
        assert of.mean() == pytest.approx(0.0, abs=0.12)


def test_a_row_has_the_same_noise_alone_as_among_others() -> None:
    np.testing.assert_array_equal(noise(rows=slice(1, 2))[0], noise()[1])


def test_steps_seeds_and_rows_differ() -> None:
    first = noise()
    for other in (noise(step=4), noise(seed=1), noise()[::-1]):
        assert np.abs(first - other).mean() > 0.05


def test_micro_batches_and_devices_draw_what_one_batch_draws_and_it_is_not_nothing() -> None:
    quiet = build.steps(Training())
    whole = build.steps(Training(neftune_alpha=30.0))
    parts = build.steps(Training(neftune_alpha=30.0, micro_batch_size=4), (2, 2, 1, 1))
    batch = build.batch()
    for _ in range(2):
        wanted, split, without = whole(batch), parts(batch), quiet(batch)
        assert split["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
        assert abs(without["loss"] - wanted["loss"]) > 1e-4
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3), parts.host().params, whole.host().params)
