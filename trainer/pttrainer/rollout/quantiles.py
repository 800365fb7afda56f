"""What the log says of many numbers at once."""

from __future__ import annotations

import numpy as np


def figures(name: str, values: np.ndarray) -> dict[str, float]:
    """Mean, deviation and extremes; zeros where there are no values."""
    there = values if values.size else np.zeros(1)
    return {f"{name}/mean": float(there.mean()), **spread(name, there)}


def spread(name: str, values: np.ndarray, *, ddof: int = 0) -> dict[str, float]:
    """Deviation, with n − ddof in its denominator, and extremes; zeros where there are too few values."""
    return {
        f"{name}/std": float(values.std(ddof=ddof)) if values.size > ddof else 0.0,
        f"{name}/min": float(values.min()) if values.size else 0.0,
        f"{name}/max": float(values.max()) if values.size else 0.0,
    }
