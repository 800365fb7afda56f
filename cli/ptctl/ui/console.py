"""The one place that writes to the terminal: data to stdout, everything said to a person to stderr.

Colour and live views exist only on a terminal without NO_COLOR, and never carry meaning by themselves.
Left out: rich, which costs as much to import as the whole budget of `ptctl --help`; only the demo loads it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from typing import TextIO

_CODES = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36", "bold": "1", "dim": "2"}


class Console:
    """Where text goes. Streams and environment are injected, so that tests see every byte."""

    def __init__(
        self, out: TextIO | None = None, err: TextIO | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self.out = out or sys.stdout
        self.err = err or sys.stderr
        self._env = os.environ if env is None else env

    def data(self, text: str) -> None:
        """What was asked for: a table, a document, a log line."""
        self.out.write(text + "\n")
        self.out.flush()

    def say(self, text: str) -> None:
        """What a person should know besides the data."""
        self.err.write(text + "\n")
        self.err.flush()

    def warn(self, text: str) -> None:
        """Something odd that does not stop the command."""
        self.say(f"{self._paint('warning:', 'yellow', self.err)} {text}")

    def error(self, message: str, hint: str = "") -> None:
        """Why the command ends."""
        self.say(f"{self._paint('error:', 'red', self.err)} {message}")
        if hint:
            self.say(f"hint: {hint}")

    def paint(self, text: str, colour: str) -> str:
        """The text in a colour, where stdout shows colours; callers pad before they paint."""
        return self._paint(text, colour, self.out)

    @property
    def is_live(self) -> bool:
        """Whether a person watches what is said: only then progress is drawn."""
        return _is_terminal(self.err) and self._env.get("TERM") != "dumb"

    @property
    def width(self) -> int | None:
        """Columns of the terminal that shows the data; None in a pipe or file, where nothing is cut."""
        return shutil.get_terminal_size().columns if _is_terminal(self.out) else None

    def _paint(self, text: str, colour: str, stream: TextIO) -> str:
        if not colour or self._env.get("NO_COLOR") or self._env.get("TERM") == "dumb" or not _is_terminal(stream):
            return text
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m"


def _is_terminal(stream: TextIO) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)())
