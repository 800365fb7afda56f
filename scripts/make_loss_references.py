"""Writes `tests/unit/trainer/references-losses.npz`: what TRL computes on the tensors of `tests/builders/losses.py`.

    make references

Runs in the environment of `make parity`; the unit tests compare ours with them where torch is not installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from tests.builders.trl_losses import theirs  # noqa: E402

if __name__ == "__main__":
    found = theirs()
    np.savez_compressed(ROOT / "tests" / "unit" / "trainer" / "references-losses.npz", **found)
    print(f"{len(found)} arrays")
