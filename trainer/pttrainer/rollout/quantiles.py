"""Summary statistics of many values, for the log."""

from __future__ import annotations

import numpy as np


def summary(name: str, values: np.ndarray) -> dict[str, float]:
    """Return mean, deviation and extremes; zeros if there are no values."""
    present = values if values.size else np.zeros(1)
    return {f"{name}/mean": float(present.mean()), **spread(name, present)}


def spread(name: str, values: np.ndarray, *, ddof: int = 0) -> dict[str, float]:
    """Return deviation, with n − ddof in its denominator, and extremes; zeros if there are too few values."""
    return {
        f"{name}/std": float(values.std(ddof=ddof)) if values.size > ddof else 0.0,
        f"{name}/min": float(values.min()) if values.size else 0.0,
        f"{name}/max": float(values.max()) if values.size else 0.0,
    }
