"""The verbs of `python -m pttrainer` besides `run`, one file each: `add_to(commands)` and its action."""

import sys


def note(line: str) -> None:
    """Print a line for people to stderr."""
    print(line, file=sys.stderr)
