"""Our losses and gradients against TRL's own on the same tensors (numbers by `scripts/make_loss_references.py`)."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.builders.peers.losses import ours

REFERENCES = dict(np.load(Path(__file__).with_name("references-losses.npz")))
TOLERANCE = 1e-5
"""Largest difference of a loss and of any entry of its gradient. Not to be loosened."""

computed = cache(ours)


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_loss_and_gradient_are_those_of_trl(name: str) -> None:
    np.testing.assert_allclose(computed()[name], REFERENCES[name], rtol=TOLERANCE, atol=TOLERANCE)


def test_every_case_has_a_reference_that_is_not_zero() -> None:
    assert set(REFERENCES) == set(computed())
    assert all(np.abs(value).max() > 1e-3 for value in REFERENCES.values())
