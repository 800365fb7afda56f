"""For every test: signals as in a terminal, Python as fast as it can be, and properties that no slow machine breaks."""

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from importlib.util import find_spec

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts its background jobs with SIGINT ignored, and children inherit that: no test
    # could press Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where images forbid compiled modules to be written, each of hundreds of processes would compile ours again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# What ptctl keeps between two commands: not the developer's.
os.environ["PTCTL_HOME"] = tempfile.mkdtemp(prefix="ptctl-home-")
atexit.register(shutil.rmtree, os.environ["PTCTL_HOME"], ignore_errors=True)

if find_spec("hypothesis"):  # not where only what an accelerator needs is installed
    from hypothesis import HealthCheck, settings

    # A property holds or it does not: how long an example takes on a busy machine is no part of it. Examples are the
    # same each time, so that no change fails by another's mistake; HYPOTHESIS_PROFILE=long draws others.
    settings.register_profile(
        "whatever the machine",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=os.environ.get("HYPOTHESIS_PROFILE") != "long",
        database=None,
    )
    settings.load_profile("whatever the machine")


def pytest_configure() -> None:
    """Whatever ends these tests, nothing that they started goes on."""
    from tests.builders.cluster import leftovers  # found only once pytest has read its settings

    leftovers.end_with_this_process()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Thousands of tests and their modules stay until the end: without them a tenth of jax's tracing is saved."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)  # tracing makes many objects, and few that only the collector could free
