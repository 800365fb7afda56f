"""The number of optimizer steps of a run."""

from __future__ import annotations

import math

from ptapi.spec import Training

DIGITS = 6
"""Significant digits of a batch count: 0.1 epochs of 30 batches are 3, though 0.1 * 30 is slightly more in floats."""


def total_steps(training: Training, rows: int, at_once: int, updates: int = 1) -> int:
    """Return the job's steps, or those of its epochs: batches of `at_once` rows, with `updates` updates each.

    The last batch is complete, so it may start another epoch.
    """
    batches = math.ceil(round((training.epochs or 1.0) * rows / at_once, DIGITS))
    return training.steps or max(1, batches) * updates
