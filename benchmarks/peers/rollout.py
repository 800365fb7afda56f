"""Sampling against its peers, in one run, on the same shapes: new tokens/s, per CPU-second, memory, time to the first.

`random://bench-16m` and `bench-13m`, float32, prompts of 64 tokens: 128 new tokens of 8 and of 32 different prompts,
with a cache just large enough and with one of 1,024 tokens allowed; and 256 samples of geometric length (mean 48, at
most 256) in 32 rows. Every side is a process of its own, watched from outside (`measure`); sides take turns, so that
what else the machine does touches all of them. Tokens per second are of whole generations: prompts are computed in
them, too.

    python benchmarks/peers/rollout.py --tunix .venv-tunix/bin/python --torch .venv-parity/bin/python

A row whose Python is not given is left out; with `--ours` our side of it is measured alone. The first turn of ours
compiles, the others find compiled functions, as a second run of a user does; JAX peers are given such a cache as well.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from measure import Measured
from peer_table import Table, TokenRate, run

OURS = Path(__file__).with_name("native_rollout.py")


@dataclass(frozen=True)
class Work:
    """A row of the table. bound: what our tokens/s must be, as a multiple of the peer's."""

    name: str
    model: str
    flags: tuple[str, ...]
    peer: str
    script: str
    python: str
    bound: float


def _tunix(name: str, batch: int, bound: float, *more: str) -> Work:
    flags = ("--batch", str(batch), *more)
    return Work(f"bench-16m, {batch} rows{name}", "bench-16m", flags, "Tunix", "tunix_rollout.py", "tunix", bound)


def _hf(name: str, batch: int, bound: float, *more: str) -> Work:
    flags = ("--batch", str(batch), *more)
    return Work(f"bench-13m, {batch} rows{name}", "bench-13m", flags, "HF generate", "hf_generate.py", "torch", bound)


WORKS = (
    _tunix(", exact cache", 8, 1.5),
    _tunix(", exact cache", 32, 1.5),
    _tunix(", 1,024 tokens of cache allowed", 8, 3.0, "--cache", "1024"),
    _tunix(", 1,024 tokens of cache allowed", 32, 3.0, "--cache", "1024"),
    _hf("", 8, 3.0),
    _hf("", 32, 1.5),
    _hf(", ragged", 32, 3.0, "--ragged"),
)


def flags(work: Work, steps: int) -> list[object]:
    """Return the command line of either side's script."""
    return ["--model", work.model, *work.flags, "--steps", steps]


def ours(work: Work, steps: int, cache: Path) -> Measured:
    """Run ours once."""
    return run([sys.executable, str(OURS), *map(str, flags(work, steps))], cache)


if __name__ == "__main__":
    rate = TokenRate()
    table = Table(WORKS, ours, flags, rate.speed, rate.ratio)
    table.main(__doc__, 6, "generations of each process; the first two do not count")
