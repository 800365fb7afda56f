"""Carries the stacks of a process whose Python stands still into the run directory: a small process beside it.

A thread that holds Python's lock for ever keeps the watchdog from running, and so from writing anything to a bucket;
and the operator, which then deletes the pod, deletes what was in it. The courier hears from the watchdog every few
seconds. When it hears nothing for `STILL_S` it sends SIGUSR1, which faulthandler answers without Python's lock, into a
file that both have open, and writes that file's content where the watchdog would have. It ends nothing: faulthandler's
timer does that, and the operator.

Left out: processes that are stopped or frozen with their host. No signal reaches those.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from types import FrameType

STILL_S = 100.0
"""Silence after which stacks are fetched: before the operator takes the pod away (two minutes after the limit)."""
DUMP_S = 2.0
"""faulthandler writes within milliseconds; a machine that swaps takes longer."""


class Courier:
    """The watchdog's end. Started late, so that short runs have no second process."""

    def __init__(self, uri: str, stacks: int, still_s: float = STILL_S) -> None:
        command = [
            sys.executable,
            "-m",
            "pttrainer.runtime.reporting.stack_dumper",
            str(os.getpid()),
            str(stacks),
            uri,
            str(still_s),
        ]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=(stacks,), start_new_session=True
        )

    def tell(self, name: str) -> None:
        """Python runs. name: of the file for the stacks, in the run directory."""
        assert self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), f"{name}\n".encode())
        except OSError:
            pass  # it is gone; the run goes on without

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main(arguments: list[str]) -> int:
    parent, stacks, uri, still_s = int(arguments[0]), int(arguments[1]), arguments[2], float(arguments[3])
    signal.signal(signal.SIGTERM, _stay)  # a drained pod still hangs
    name, is_told = "", False
    while True:
        ready, _, _ = select.select([0], [], [], still_s)
        if ready:
            heard = os.read(0, 4096)
            if not heard:
                return 0
            name, is_told = heard.decode().split("\n")[-2], False
        elif name and not is_told:
            is_told = True
            _deliver(parent, stacks, uri, name, still_s)


def _deliver(parent: int, stacks: int, uri: str, name: str, still_s: float) -> None:
    size = os.fstat(stacks).st_size
    os.kill(parent, signal.SIGUSR1)
    until = time.monotonic() + DUMP_S
    while os.fstat(stacks).st_size == size and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.2)  # the last thread's lines
    text = os.pread(stacks, os.fstat(stacks).st_size, 0)
    said = f"error: Python has not run for {still_s:.0f} s; stacks of all threads: {uri}/{name}\n"
    sys.stderr.write(said + text[size:].decode(errors="replace"))
    sys.stderr.flush()
    from pttrainer.runtime.io import storage  # its cloud clients are imported when there is something to carry

    storage.place(uri).write(name, text)


def _stay(number: int, frame: FrameType | None) -> None:
    """Ends with the process it is beside."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
