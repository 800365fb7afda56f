"""The only module that writes to the terminal: data to stdout, messages to stderr.

Colour and live views exist only on a terminal without NO_COLOR, and never carry meaning by themselves. rich is not
used, because importing it costs the whole budget of `ptctl --help`; only the demo loads it.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from typing import TextIO

_CODES = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36", "bold": "1", "dim": "2"}


class Console:
    """Writes all output. Streams and environment are injected, so that tests can read every byte."""

    def __init__(
        self, out: TextIO | None = None, err: TextIO | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self.out = out or sys.stdout
        self.err = err or sys.stderr
        self._env = os.environ if env is None else env

    def data(self, text: str) -> None:
        """Write the requested data: a table, a document, a log line."""
        self.out.write(text + "\n")
        self.out.flush()

    def pass_on(self, out: bytes, err: bytes) -> None:
        """Write what another program has written, byte for byte."""
        for stream, content in ((self.out, out), (self.err, err)):
            if content:
                stream.buffer.write(content)
                stream.flush()

    def say(self, text: str) -> None:
        """Write a message for the user."""
        self.err.write(text + "\n")
        self.err.flush()

    def warn(self, text: str) -> None:
        """Write a warning that does not stop the command."""
        self.say(f"{self._paint('warning:', 'yellow', self.err)} {text}")

    def error(self, message: str, hint: str = "") -> None:
        """Write the error that ends the command."""
        self.say(f"{self._paint('error:', 'red', self.err)} {message}")
        if hint:
            self.say(f"hint: {hint}")

    def paint(self, text: str, colour: str) -> str:
        """Colour the text if stdout shows colours; callers pad before they paint."""
        return self._paint(text, colour, self.out)

    @property
    def is_live(self) -> bool:
        """Return True if messages go to a terminal that can show progress."""
        return _is_terminal(self.err) and self._env.get("TERM") != "dumb"

    @property
    def width(self) -> int | None:
        """Return the columns of the terminal that shows the data; None in a pipe or file, where nothing is cut."""
        return shutil.get_terminal_size().columns if _is_terminal(self.out) else None

    def _paint(self, text: str, colour: str, stream: TextIO) -> str:
        if not colour or self._env.get("NO_COLOR") or self._env.get("TERM") == "dumb" or not _is_terminal(stream):
            return text
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m"


def _is_terminal(stream: TextIO) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)())
