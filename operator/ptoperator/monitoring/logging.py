"""The log: one line per thing that happened to a job, and kopf's only where it has something of its own to say."""

from __future__ import annotations

import logging
import sys
import time

from ptoperator.failures.redaction import redact

_FORMAT = "%(asctime)s %(levelname).1s %(message)s"
_OUTAGE_S = 60.0


def configure(level: str) -> None:
    """Write to stderr from this level on. kopf tells every event of every object, so it starts at warnings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Redacting(_FORMAT))
    if level != "debug":
        handler.addFilter(OutageFilter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("kopf").setLevel(max(logging.getLogger().level, logging.WARNING))
    logging.getLogger("aiohttp").setLevel(logging.WARNING)


class Redacting(logging.Formatter):
    """What looks like a secret is in no line, whoever wrote it, and in no traceback."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


class OutageFilter(logging.Filter):
    """An outage of the API server is one line a minute, instead of one per watch and attempt."""

    def __init__(self) -> None:
        super().__init__()
        self._told = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if not text.startswith("Request attempt") or not ("ClientConn" in text or "TimeoutError" in text):
            return True
        if time.monotonic() - self._told < _OUTAGE_S:
            return False
        self._told = time.monotonic()
        record.msg, record.args = "lost the API server, trying again until it answers", ()
        return True
