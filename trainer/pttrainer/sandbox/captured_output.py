"""What the user's code prints: it goes to the log, and not more of it than a log can hold.

A burst passes, and then a little every second; of what is left out the log says so, once per burst. A reward that
prints a line per sample is read whole; one that prints gigabytes fills no disk.
"""

from __future__ import annotations

BURST = 64 << 10
"""Bytes that may come at once."""
PER_SECOND = 4 << 10
"""Bytes that pass in the long run."""
LEFT_OUT = b"\n... (what was printed after this is left out)\n"


class Gate:
    """How much may pass now."""

    def __init__(self) -> None:
        self._left = float(BURST)
        self._since: float | None = None
        self._is_open = True

    def passed(self, piece: bytes, now: float) -> bytes:
        """The part of a piece that passes; now: in seconds of any clock."""
        if self._since is not None:
            self._left = min(BURST, self._left + PER_SECOND * (now - self._since))
        self._since = now
        if not self._is_open and self._left < BURST / 2:
            return b""  # shut until there is room for more than scraps
        passed = piece[: int(self._left)]
        self._left -= len(passed)
        self._is_open = len(passed) == len(piece)
        return passed if self._is_open else passed + LEFT_OUT
