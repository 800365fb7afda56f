"""Text of a model on a person's terminal. Imports nothing: `ptctl` shows it before it knows any model of the spec."""

from __future__ import annotations


def printable(text: str) -> str:
    """Without what would move the cursor or recolour the terminal; lines and tabs stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)
