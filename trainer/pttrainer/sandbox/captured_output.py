"""Forward the output of user code to the log, at a limited rate.

A burst passes, then a little every second; the log says once per burst that output was dropped. A reward that prints a
line per sample is shown in full; one that prints gigabytes does not fill the disk.
"""

BURST = 64 << 10
"""Bytes of a burst that pass at once."""
PER_SECOND = 4 << 10
"""Bytes per second that pass in the long run."""
LEFT_OUT = b"\n... (what was printed after this is left out)\n"


class OutputLimiter:
    """Token bucket that decides how much output passes."""

    def __init__(self) -> None:
        self._left = float(BURST)
        self._since: float | None = None
        self._is_open = True

    def allow(self, piece: bytes, now: float) -> bytes:
        """Return the part of a piece that passes; `now` is in seconds of any clock."""
        if self._since is not None:
            self._left = min(BURST, self._left + PER_SECOND * (now - self._since))
        self._since = now
        if not self._is_open and self._left < BURST / 2:
            return b""  # closed until there is room for more than scraps
        allow = piece[: int(self._left)]
        self._left -= len(allow)
        self._is_open = len(allow) == len(piece)
        return allow if self._is_open else allow + LEFT_OUT
