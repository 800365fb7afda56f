"""A place for files, whatever is behind it: `Place` lists the operations.

Writes replace files atomically: a reader sees the old content or the new, never half of it. `write_if` is the one write
that two machines may attempt at once: one of them succeeds. Every other write calls `fence` first. Left out: streaming.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol


class Versioned(NamedTuple):
    """A file's content and its generation, which changes with each write; None and 0 if the file does not exist."""

    content: bytes | None
    generation: int


def no_fence() -> None:
    """Allow every write."""


class Place(Protocol):
    """A directory of files; names are relative paths with `/`.

    fence: called before each write; it does not return if this process may not write.
    """

    uri: str
    fence: Callable[[], None]

    def read(self, name: str) -> bytes | None:
        """Return the content, or None if the file does not exist."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Replace the file atomically."""
        ...

    def append(self, name: str, content: bytes) -> None:
        """Append to the file."""
        ...

    def remove(self, name: str) -> None:
        """Delete the file if it exists."""
        ...

    def names(self, under: str = "") -> list[str]:
        """Return the names of all files below, sorted."""
        ...

    def upload(self, name: str, path: Path) -> None:
        """Write the file from a local one; for large files."""
        ...

    def read_versioned(self, name: str) -> Versioned:
        """Return the content and the generation that `write_if` compares."""
        ...

    def write_if(self, name: str, content: bytes, generation: int) -> int | None:
        """Replace the file if it still has this generation (0: does not exist); return the new generation, or None."""
        ...
