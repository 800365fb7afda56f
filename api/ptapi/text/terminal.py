"""Logs and model output on a terminal.

Imports nothing, because `ptctl` uses it before it imports any model of the spec.
"""

PROGRESS_LINE = "posttrain-progress: "
"""Start of a log line for the operator, which people need not see: a `run_directory.Progress` follows."""


def printable(text: str) -> str:
    """Escape everything that could move the cursor or recolour the terminal; keep newlines and tabs."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)
