"""Losses and gradients against TRL, live."""

from __future__ import annotations

import numpy as np
from tests.builders.losses import ours
from tests.builders.trl_losses import theirs

TOLERANCE = 1e-5
"""Largest difference of a loss and of any entry of its gradient. Not to be loosened."""


def test_losses_and_gradients_are_those_of_trl() -> None:
    found, wanted = ours(), theirs()
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)
