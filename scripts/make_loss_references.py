"""Write `references-losses.npz` of the unit tests: what TRL computes on the tensors of `builders/peers/losses.py`.

    make references

Runs in the environment of `make parity`; the unit tests compare ours with them where torch is not installed.
"""

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from tests.builders.peers.trl_losses import theirs  # noqa: E402

if __name__ == "__main__":
    arrays = theirs()
    np.savez_compressed(ROOT / "tests" / "unit" / "pttrainer" / "losses" / "references-losses.npz", **arrays)
    print(f"{len(arrays)} arrays")
