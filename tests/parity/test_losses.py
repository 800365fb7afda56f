"""Losses and gradients against TRL, live: on the tensors whose numbers are kept, and on others.

The seeds are fixed so that a failure can be repeated; `PARITY_SEEDS=100:140 make parity` tries others.
"""

import os

import numpy as np
import pytest
from tests.builders.peers.losses import FIXED, POLICY, Tensors, ours, tensors
from tests.builders.peers.trl_losses import theirs

TOLERANCE = 1e-5
"""Largest difference of a loss and of any entry of its gradient. Not to be loosened."""
MEANS_OVER_SEQUENCES = ("grpo", "gspo", "gspo-token", "luspo", "sapo")
FIRST, LAST = (int(x) for x in os.environ.get("PARITY_SEEDS", "0:3").split(":"))


def compare(given: Tensors) -> None:
    results, wanted = ours(given), theirs(given)
    assert set(results) == set(wanted)
    for name, value in wanted.items():
        np.testing.assert_allclose(results[name], value, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)


def some(seed: int, *, least: int, distance: float) -> Tensors:
    """Tensors of a shape that nobody chose. least: tokens of the shortest row."""
    rng = np.random.default_rng([seed, 1])
    B, T, D, V = 2 * rng.integers(1, 7), rng.integers(1, 40), rng.integers(1, 24), rng.integers(2, 90)
    lengths_B = rng.integers(least, T + 1, B)
    lengths_B[rng.integers(B)] = T
    return tensors(seed, lengths_B.tolist(), int(T), int(D), int(V), distance=distance)


def test_losses_and_gradients_are_those_of_trl() -> None:
    compare(FIXED)


@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_losses_and_gradients_are_those_of_trl_on_tensors_that_nobody_chose(seed: int) -> None:
    compare(some(seed, least=1, distance=0.35))


@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_policies_far_apart_and_rows_that_said_nothing_lose_as_in_trl(seed: int) -> None:
    """Ratios up to exp(15): TRL does not bound them, we do at exp(20). A row that said nothing (there was no room after
    its prompt, or it only fills a batch up) is no sequence of a mean over sequences; TRL counts it."""
    given = some(seed, least=0, distance=4.0)
    results, wanted = ours(given, ["policy"]), theirs(given, ["policy"])
    rows = len(given.mask_BT) / (given.mask_BT.sum(axis=1) > 0).sum()
    for name, value in wanted.items():
        factor = rows if POLICY[name.split("/")[1]][0] in MEANS_OVER_SEQUENCES else 1.0
        np.testing.assert_allclose(results[name], factor * value, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)
