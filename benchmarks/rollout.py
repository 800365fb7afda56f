"""Sampling against its peers, in one run, on the same shapes: new tokens/s, per CPU-second, memory, time to the first.

`random://bench-16m` and `bench-13m`, float32, prompts of 64 tokens: 128 new tokens of 8 and of 32 different prompts,
with a cache just large enough and with one of 1,024 tokens allowed; and 256 samples of geometric length (mean 48, at
most 256) in 32 rows. Every side is a process of its own, watched from outside (`measure`); sides take turns, so that
what else the machine does touches all of them. Tokens per second are of whole generations: prompts are computed in
them, too.

    python benchmarks/rollout.py --tunix .venv-tunix/bin/python --torch .venv-parity/bin/python

A side whose Python is not given is left out. The first turn of ours compiles, the others find compiled functions;
JAX peers are given such a cache as well.
"""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import peertable
from measure import Measured, in_turns, measure, median

HERE = Path(__file__).parent
OURS = HERE / "native_rollout.py"


@dataclass(frozen=True)
class Work:
    """A row of the table. bound: what our tokens/s must be, as a multiple of the peer's."""

    name: str
    flags: tuple[str, ...]
    peer: str
    script: str
    python: str
    bound: float


def _tunix(name: str, batch: int, bound: float, *more: str) -> Work:
    flags = ("--model", "bench-16m", "--batch", str(batch), *more)
    return Work(f"bench-16m, {batch} rows{name}", flags, "Tunix", "tunix_rollout.py", "tunix", bound)


def _hf(name: str, batch: int, bound: float, *more: str) -> Work:
    flags = ("--model", "bench-13m", "--batch", str(batch), *more)
    return Work(f"bench-13m, {batch} rows{name}", flags, "HF generate", "hf_generate.py", "torch", bound)


WORKS = (
    _tunix(", exact cache", 8, 1.5),
    _tunix(", exact cache", 32, 1.5),
    _tunix(", 1,024 tokens of cache allowed", 8, 3.0, "--cache", "1024"),
    _tunix(", 1,024 tokens of cache allowed", 32, 3.0, "--cache", "1024"),
    _hf("", 8, 3.0),
    _hf("", 32, 1.5),
    _hf(", ragged", 32, 3.0, "--ragged"),
)


def one_run(command: list[str], cache: Path) -> Measured:
    """Of either side."""
    return measure(command, {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PLATFORMS": "cpu"})


def compare(work: Work, python: str, steps: int, turns: int) -> None:
    """Both sides in turns, and the row that comes of it."""
    flags = [*work.flags, "--steps", str(steps)]
    sides = {
        "ours": partial(one_run, [sys.executable, str(OURS), *flags]),
        work.peer: partial(one_run, [python, str(HERE / "peers" / work.script), *flags]),
    }
    found = in_turns(sides, turns)
    print(f"\n{work.name}, against {work.peer}")
    for name, runs in found.items():
        print(
            f"  {name:<11} {_rate(runs, 'wall_s'):6.0f} tokens/s  {_rate(runs, 'cpu_s'):5.0f} per CPU-s  "
            f"{median(runs, 'peak_gb'):.2f} GB  first generation after {runs[0].start_s:.1f} s cold, "
            f"{median(runs[1:] or runs, 'start_s'):.1f} s warm"
        )
    mine, peer = found["ours"], found[work.peer]
    print(
        f"  ratio       {_rate(mine, 'wall_s') / _rate(peer, 'wall_s'):.2f} x tokens/s (bound {work.bound}), "
        f"{_rate(mine, 'cpu_s') / _rate(peer, 'cpu_s'):.2f} x per CPU-s, "
        f"{median(mine, 'peak_gb') / median(peer, 'peak_gb'):.2f} x memory, "
        f"{median(mine[1:] or mine, 'start_s') / median(peer[1:] or peer, 'start_s'):.2f} x start",
        flush=True,
    )


def _rate(runs: list[Measured], field: str) -> float:
    return median(runs, "tokens") / median(runs, field)


if __name__ == "__main__":
    peertable.run(__doc__, WORKS, compare, 6, "generations of each process; the first two are not counted")
