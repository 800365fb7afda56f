"""The hang watchdog: how long is too long, and what is left behind."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
from array import array
from pathlib import Path

import pytest
from tests.builders.cluster.manifests import eventually

from ptapi import run_directory
from ptapi.failures import ExitCode
from pttrainer.runtime.io.directory import Directory
from pttrainer.runtime.reporting import watchdog
from pttrainer.runtime.reporting.heartbeat import Heartbeats
from pttrainer.runtime.reporting.progress import Beat
from pttrainer.runtime.reporting.stack_dumper import StackDumper
from pttrainer.runtime.reporting.watchdog import Watchdog


def beat(stage: run_directory.Stage = "training", typical: float | None = 2.0, since: float = 0.0) -> Beat:
    return Beat(stage, since, 40, typical, 3)


def test_a_hang_leaves_stacks_and_a_reason_and_ends_with_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "COORDINATOR_LINGER_S", 0.0)
    codes: list[int] = []
    ended = threading.Event()

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    still = beat(since=time.monotonic() - 100.0)
    dog = Watchdog(lambda: still, Directory(tmp_path), 0, 30, end=end, poll_s=0.01)
    assert ended.wait(120)
    dog.stop()
    assert codes == [ExitCode.HANG]
    stacks = (tmp_path / run_directory.stack_file(3, 0)).read_text()
    assert "test_a_hang_leaves_stacks" in stacks  # this thread waits here
    document = run_directory.Termination.model_validate_json((tmp_path / run_directory.TERMINATION).read_text())
    assert (document.exit_code, document.failure_class, document.step) == (ExitCode.HANG, "Hang", 40)
    assert "no progress for 100 s after step 40 while training (limit 30 s)" in document.message


def test_a_signal_writes_stacks_and_ends_nothing(tmp_path: Path) -> None:
    codes: list[int] = []
    dog = Watchdog(lambda: beat(since=time.monotonic()), Directory(tmp_path), 2, None, end=codes.append, poll_s=0.01)
    os.kill(os.getpid(), signal.SIGUSR1)
    target = tmp_path / run_directory.stack_file(3, 2)
    eventually(target.exists, 120)
    dog.stop()
    assert "test_a_signal_writes_stacks" in target.read_text()
    assert codes == []


STUCK = """
import ctypes, sys, time
from pathlib import Path
from pttrainer.runtime.reporting import watchdog
from pttrainer.runtime.reporting.heartbeat import Heartbeats
from pttrainer.runtime.reporting.progress import Beat
from pttrainer.runtime.io.directory import Directory

watchdog.LOCKED_S, watchdog.REARM_S = 3.0, 0.1
dog = watchdog.Watchdog(lambda: Beat("training", time.monotonic(), 1, 1.0, 1), Directory(Path(sys.argv[1])), 0, None,
                        poll_s=0.05)
time.sleep(0.5)
ctypes.PyDLL(None).sleep(60)  # holds Python's lock
"""


def test_a_process_whose_python_is_stuck_ends_with_its_stacks(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", STUCK, str(tmp_path)], capture_output=True, text=True, timeout=900)
    assert ended.returncode == ExitCode.UNKNOWN
    assert "Timeout (0:00:03)!" in ended.stderr
    assert 'File "<string>", line 13' in ended.stderr


HELD = """
import ctypes, sys, threading, time
from pathlib import Path
from pttrainer.runtime.reporting import stack_dumper, watchdog
from pttrainer.runtime.reporting.progress import Beat
from pttrainer.runtime.io.directory import Directory

knows, keep_alive = threading.Event(), stack_dumper.StackDumper.keep_alive
stack_dumper.StackDumper.keep_alive = lambda dumper, name: (keep_alive(dumper, name), knows.set())
stack_dumper.StackDumper.__init__.__defaults__ = (1.0,)
watchdog.REARM_S, watchdog.STACK_DUMPER_AFTER_S = 0.1, 0.0
dog = watchdog.Watchdog(lambda: Beat("training", time.monotonic(), 1, 1.0, 1), Directory(Path(sys.argv[1])), 0, None,
                        poll_s=0.05)
knows.wait()  # where to write
lock, c = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
c.pthread_mutex_lock(lock)
c.pthread_mutex_lock(lock)  # holds Python's lock for ever, whatever signal comes
"""


def test_stacks_of_a_process_whose_python_is_stuck_come_into_the_run_directory_before_it_ends(tmp_path: Path) -> None:
    held = subprocess.Popen([sys.executable, "-c", HELD, str(tmp_path)], stderr=subprocess.PIPE, text=True)
    target, where = tmp_path / run_directory.stack_file(1, 0), 'File "<string>", line 17'
    eventually(lambda: held.poll() is not None or (target.exists() and where in target.read_text()))
    assert held.poll() is None
    held.kill()
    _, errors = held.communicate(timeout=900)
    assert "error: Python has not run for 1 s; stacks of all threads: file://" in errors


def test_a_stack_dumper_whose_process_works_writes_nothing_and_ends_with_it(tmp_path: Path) -> None:
    stacks = tempfile.TemporaryFile()  # noqa: SIM115
    beside = StackDumper(f"file://{tmp_path}", stacks.fileno(), still_s=30.0)
    for _ in range(3):
        beside.keep_alive(run_directory.stack_file(1, 0))
    unread = array("i", [1])
    eventually(lambda: fcntl.ioctl(beside._process.stdin, termios.FIONREAD, unread) == 0 == unread[0])  # it has started
    beside.stop()
    assert beside._process.returncode == 0
    assert list(tmp_path.iterdir()) == []
    stacks.close()


def test_every_process_leaves_a_sign_of_life_and_no_write_waits_for_another(tmp_path: Path) -> None:
    class Slow(Directory):
        def write(self, name: str, content: bytes) -> None:
            assert gate.wait(120)
            super().write(name, content)

    gate = threading.Event()
    beats = Heartbeats(Slow(tmp_path), 7, every_s=0.0)
    for _ in range(3):
        beats.update(beat(since=time.monotonic()))
    assert [thread.name for thread in threading.enumerate()].count("heartbeat") == 1
    gate.set()
    target = tmp_path / run_directory.heartbeat_file(7)
    eventually(target.exists, 120)
    document = run_directory.Heartbeat.model_validate_json(target.read_text())
    assert (document.process, document.step, document.stage, document.attempt) == (7, 40, "training", 3)
    assert document.host == socket.gethostname()
