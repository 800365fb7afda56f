"""For every test: signals as in a terminal, and Python as fast as it can be."""

from __future__ import annotations

import gc
import os
import signal
import sys

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts its background jobs with SIGINT ignored, and children inherit that: no test
    # could press Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where images forbid compiled modules to be written, each of hundreds of processes would compile ours again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Thousands of tests and their modules stay until the end: without them a tenth of jax's tracing is saved."""
    gc.collect()
    gc.freeze()
