"""Logging: one line per event of a job, and kopf's own lines only from warnings on."""

import logging
import sys
import time

from ptoperator.failures.redaction import redact

_FORMAT = "%(asctime)s %(levelname).1s %(message)s"
_OUTAGE_S = 60.0
_OUTAGES = ("ClientConn", "ClientOSError", "ServerDisconnected", "TimeoutError")
"""The errors of aiohttp, in kopf's lines, that say that nobody answers."""


def configure(level: str) -> None:
    """Write to stderr from this level on. kopf logs every event of every object, so it starts at warnings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Redacting(_FORMAT))
    if level != "debug":
        handler.addFilter(OutageFilter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("kopf").setLevel(max(logging.getLogger().level, logging.WARNING))
    logging.getLogger("aiohttp").setLevel(logging.WARNING)


class Redacting(logging.Formatter):
    """A formatter that removes likely secrets from every line and traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record without secrets."""
        return redact(super().format(record))


class OutageFilter(logging.Filter):
    """A filter that reduces an outage of the API server to one line a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._last_reported = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for a line that repeats an outage."""
        text = record.getMessage()
        if not text.startswith("Request attempt") or not any(error in text for error in _OUTAGES):
            return True
        if time.monotonic() - self._last_reported < _OUTAGE_S:
            return False
        self._last_reported = time.monotonic()
        record.msg, record.args = "lost the connection to the API server; retrying until it answers", ()
        return True
