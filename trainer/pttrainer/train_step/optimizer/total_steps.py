"""How many optimizer steps a run has."""

from __future__ import annotations

import math

from ptapi.spec import Training

DIGITS = 6
"""Of a number of batches that count: 0.1 epochs of 30 batches are 3, though 0.1 * 30 is a little more in floats."""


def total_steps(training: Training, rows: int, at_once: int, updates: int = 1) -> int:
    """The job's steps, or what its epochs come to: batches of so many rows at once, with so many updates each. The last
    batch is a whole one, so it may begin another epoch."""
    batches = math.ceil(round((training.epochs or 1.0) * rows / at_once, DIGITS))
    return training.steps or max(1, batches) * updates
