"""No process outlives the tests that started it, however these end.

Clusters are processes in sessions of their own: a pytest that is killed, or that its own timeout ends, would leave
them to run for ever. So one small process watches each process of tests; run as a program (`leftovers.py PID MARK`)
this file is that one. It kills what carries the mark in its environment, and the descendants of that.
"""

import os
import secrets
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

MARK = "POSTTRAIN_TESTS"


def end_with_this_process() -> None:
    """Mark all that is started from now on, to be killed after this process. Does nothing where there are no pidfds."""
    if not hasattr(os, "pidfd_open"):
        return
    clean = {key: value for key, value in os.environ.items() if key != MARK}
    mark = os.environ[MARK] = f"{os.getpid()}-{secrets.token_hex(8)}"
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), mark]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.Popen(command, env=clean, cwd="/", start_new_session=True, **quiet)  # type: ignore[call-overload]


def marked(mark: str) -> set[int]:
    """The processes with the mark, and their descendants."""
    parents, own = {}, set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if f"\0{MARK}={mark}\0".encode() in b"\0" + (folder / "environ").read_bytes():
                own.add(int(folder.name))
        except OSError:
            continue  # it has ended, or is another user's
    while more := {child for child, parent in parents.items() if parent in own} - own:
        own |= more
    return own - {os.getpid()}


def _kill(pids: set[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def main(pid: int, mark: str) -> None:
    """Wait for the end of the process, then kill all that it left."""
    try:
        select.select([os.pidfd_open(pid)], [], [])
    except ProcessLookupError:
        pass  # it has ended before
    end = time.monotonic() + 60
    while (left := marked(mark)) and time.monotonic() < end:
        _kill(left)
        time.sleep(0.05)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
