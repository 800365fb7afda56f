"""The command line of a table against peers: which interpreters there are, which row, how many turns."""

import argparse
import subprocess
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from measure import LEAST_STEPS, WARM_UP


class Row(Protocol):
    """One row of the table. python: `tunix` or `torch`, whose interpreter runs the peer."""

    @property
    def name(self) -> str: ...
    @property
    def peer(self) -> str: ...
    @property
    def python(self) -> str: ...


R = TypeVar("R", bound=Row)
Compare = Callable[[R, str, int, int], None]
"""(row, the peer's interpreter, steps, turns): measures and prints it."""


def run(description: str | None, rows: Sequence[R], compare: Compare[R], steps: int, steps_help: str | None) -> None:
    """Compares every row that was asked for and whose interpreter was given. steps: the default."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunix", metavar="PYTHON", help="of an environment with google-tunix 0.1.7")
    parser.add_argument("--torch", metavar="PYTHON", help="of an environment with torch, transformers, peft and trl")
    parser.add_argument("--steps", type=int, default=steps, help=steps_help)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", type=int, metavar="ROW", help="one row of the table, counted from 1")
    asked = parser.parse_args()
    if asked.steps < LEAST_STEPS:
        parser.error(
            f"--steps: {asked.steps}; accepted: {LEAST_STEPS} or more, of which the first {WARM_UP} are not counted"
        )
    for number, row in enumerate(rows, 1):
        python = getattr(asked, row.python)
        if asked.only in (None, number) and python is None:
            print(f"\n{row.name}, against {row.peer}: left out, no --{row.python}")
        elif asked.only in (None, number):
            subprocess.run([python, "-c", "pass"], check=True)
            compare(row, python, asked.steps, asked.turns)
