"""The API server's clock, as the dates of its answers tell it.

Whoever compares times that the API server wrote, or wrote times that another process compares, needs one clock for all
of them. This machine's may be wrong, and it may jump while a process runs: then a deadline would be over at once, or
never. So time is what the API server last said, and goes on by the monotonic clock. Before its first answer it is this
machine's.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from ptkube import timestamps

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ServerClock:
    """Safe to share between threads: the newest answer counts, whichever it is."""

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._ahead_s: float | None = None  # of the monotonic clock

    def now(self) -> datetime:
        """Return the current time, in UTC."""
        return (
            timestamps.utc_now()
            if self._ahead_s is None
            else _EPOCH + timedelta(seconds=self._ahead_s + self._seconds())
        )

    def hear(self, date: str | None, sent: float) -> None:
        """Take over the date of an answer to a request that was sent at this monotonic time.

        It was written between then and now, and is cut to the second: what agrees with that changes nothing.
        """
        try:
            written = parsedate_to_datetime(date or "").timestamp()
        except ValueError:  # no date, or none that can be read
            return
        least, most = written - self._seconds(), written + 1.0 - sent
        self._ahead_s = least if self._ahead_s is None else min(max(self._ahead_s, least), most)
