"""What tests start ends with them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.builders.cluster import leftovers
from tests.builders.cluster.manifests import eventually
from tests.builders.trainer.forked import is_running

ROOT = Path(__file__).resolve().parents[3]
TESTS = """
import subprocess, sys, time
from tests.builders.cluster import leftovers
leftovers.end_with_this_process()
code = "import subprocess, time; subprocess.Popen(['sleep', '1000'], env={}); print(flush=True); time.sleep(1000)"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE).stdout.readline()
print(leftovers.os.environ[leftovers.MARK], flush=True)
time.sleep(1000)
"""
"""Starts a process in a session of its own, and that one another that has dropped the mark."""


def test_what_tests_that_are_killed_have_started_is_killed_too() -> None:
    tests = subprocess.Popen([sys.executable, "-c", TESTS], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert tests.stdout is not None
    mark = tests.stdout.readline().strip()
    left = leftovers.marked(mark)
    assert len(left) == 2
    assert os.environ[leftovers.MARK] not in ("", mark), "these tests are watched themselves"
    tests.send_signal(signal.SIGKILL)
    tests.wait()
    eventually(lambda: not any(is_running(pid) for pid in left))
