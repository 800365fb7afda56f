"""For every test: signals as in a terminal, and no search of what the tests themselves are made of for garbage."""

from __future__ import annotations

import gc
import signal

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts its background jobs with SIGINT ignored, and children inherit that: no test
    # could press Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Thousands of tests and their modules stay until the end: without them a tenth of jax's tracing is saved."""
    gc.collect()
    gc.freeze()
