"""Verbs of `python -m pttrainer` beside `run`, one file each: `add_to(commands)` and what it runs."""

from __future__ import annotations

import sys


def note(line: str) -> None:
    """What a person should know beside what was asked for."""
    print(line, file=sys.stderr)
