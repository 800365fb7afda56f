"""The table that `sft.py`, `grpo.py` and `rollout.py` print: ours and a peer's on the same work, in turns."""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from measure import LEAST_STEPS, WARM_UP, Measured, in_turns, measure, median

SCRIPTS = Path(__file__).resolve().parent / "scripts"


class Row(Protocol):
    """One row of the table.

    Attributes:
        model: The preset that both sides train or sample from.
        peer: The peer's name.
        script: Its script in `scripts/`.
        python: `tunix` or `torch`: the environment that runs it.
        bound: What the ratio must be.
    """

    @property
    def name(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def peer(self) -> str: ...
    @property
    def script(self) -> str: ...
    @property
    def python(self) -> str: ...
    @property
    def bound(self) -> float: ...


R = TypeVar("R", bound=Row)


@dataclass(frozen=True)
class Table(Generic[R]):
    """What differs between the tables.

    Attributes:
        ours: Runs one process of ours: row, steps, directory for what it compiles.
        flags: Gives the command line of the peer's script for a row and a number of steps.
        speed: Words the speed of a side, from its runs.
        ratio: Words our speed beside the peer's: ours, the peer's, the row's bound.
    """

    rows: Sequence[R]
    ours: Callable[[R, int, Path], Measured]
    flags: Callable[[R, int], Sequence[object]]
    speed: Callable[[Sequence[Measured]], str]
    ratio: Callable[[Sequence[Measured], Sequence[Measured], float], str]

    def main(self, description: str | None, steps: int, steps_help: str) -> None:
        """Compare every row that the command line chooses and whose interpreter it gives. steps: the default."""
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--tunix", metavar="PYTHON", help="of an environment with google-tunix 0.1.7")
        parser.add_argument(
            "--torch", metavar="PYTHON", help="of an environment with torch, transformers, peft and trl"
        )
        parser.add_argument("--ours", action="store_true", help="measure ours alone where the peer's Python is missing")
        parser.add_argument("--steps", type=int, default=steps, help=steps_help)
        parser.add_argument("--turns", type=int, default=3)
        parser.add_argument("--only", type=int, metavar="ROW", help="one row of the table, counted from 1")
        parser.add_argument("--model", help="another preset in every row, `tiny` to see whether it runs")
        options = parser.parse_args()
        if options.steps < LEAST_STEPS:
            parser.error(
                f"--steps: {options.steps}; accepted: {LEAST_STEPS} or more, of which the first {WARM_UP} do not count"
            )
        for number, row in enumerate(self.rows, 1):
            python = getattr(options, row.python)
            if options.only not in (None, number):
                continue
            if python is None and not options.ours:
                print(f"\n{row.name}, against {row.peer}: left out, no --{row.python}")
                continue
            row = (
                row if options.model is None else replace(row, name=f"{row.name}: {options.model}", model=options.model)
            )
            self.compare(row, python, options.steps, options.turns)

    def compare(self, row: R, python: str | None, steps: int, turns: int) -> None:
        """Run the sides in turns and print the row. python: the peer's interpreter; without one, ours alone."""
        sides: dict[str, Callable[[Path], Measured]] = {"ours": partial(self.ours, row, steps)}
        if python is not None:
            subprocess.run([python, "-c", "pass"], check=True)
            sides[row.peer] = partial(self._theirs, row, python, steps)
        runs = in_turns(sides, turns)
        print(f"\n{row.name}, against {row.peer if python else 'nobody'}")
        for name, side in runs.items():
            print(
                f"  {name:<11} {self.speed(side)}  {median(side, 'peak_gb'):.2f} GB  "
                f"first step after {side[0].start_s:.1f} s cold, {median(side[1:] or side, 'start_s'):.1f} s warm",
                flush=True,
            )
        if python is not None:
            mine, peer = runs["ours"], runs[row.peer]
            print(
                f"  ratio       {self.ratio(mine, peer, row.bound)}, {share(mine, peer, 'peak_gb'):.2f} x memory, "
                f"{mine[0].start_s / peer[0].start_s:.2f} x start cold, "
                f"{share(mine[1:] or mine, peer[1:] or peer, 'start_s'):.2f} x warm",
                flush=True,
            )

    def _theirs(self, row: R, python: str, steps: int, cache: Path) -> Measured:
        return run([python, str(SCRIPTS / row.script), *map(str, self.flags(row, steps))], cache)


def run(command: list[str], cache: Path) -> Measured:
    """Measure one process on the CPU that keeps what it compiles in `cache`."""
    return measure(command, {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PLATFORMS": "cpu"})


def run_job(files: Callable[[Path], dict[str, str]], cache: Path) -> Measured:
    """Measure `python -m pttrainer run job.yaml` in a directory of its own, which holds the files that it is given."""
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        for name, text in files(here).items():
            (here / name).write_text(text)
        return run([sys.executable, "-m", "pttrainer", "run", str(here / "job.yaml")], cache)


def share(mine: Sequence[Measured], peer: Sequence[Measured], field: str) -> float:
    """Return our median of a figure over the peer's."""
    return median(mine, field) / median(peer, field)


@dataclass(frozen=True)
class TokenRate:
    """Tokens a second. step: the tokens of a step where the processes do not say them."""

    step: float = 0.0

    def speed(self, runs: Sequence[Measured]) -> str:
        """Word a side's rate."""
        return f"{self._rate(runs, 'wall_s'):6.0f} tokens/s  {self._rate(runs, 'cpu_s'):5.0f} per CPU-s"

    def ratio(self, mine: Sequence[Measured], peer: Sequence[Measured], bound: float) -> str:
        """Word our rate over the peer's."""
        wall, cpu = (self._rate(mine, seconds) / self._rate(peer, seconds) for seconds in ("wall_s", "cpu_s"))
        return f"{wall:.2f} x tokens/s (bound {bound}), {cpu:.2f} x per CPU-s"

    def _rate(self, runs: Sequence[Measured], seconds: str) -> float:
        return (self.step or median(runs, "tokens")) / median(runs, seconds)
