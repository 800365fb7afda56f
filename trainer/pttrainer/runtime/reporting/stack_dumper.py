"""A helper process that copies the stacks of a frozen trainer into the run directory.

A thread that never releases the GIL keeps the watchdog from running, and so from writing to a bucket; when the operator
then deletes the pod, everything in it is lost. The watchdog pings this process every few seconds. After `STILL_S` of
silence it sends SIGUSR1, which faulthandler answers without the GIL into a file that both processes have open, and
writes that file's content where the watchdog would have. It ends nothing: faulthandler's timer does that, and the
operator.

Left out: processes that are stopped or frozen with their host. No signal reaches those.
"""

import os
import select
import signal
import subprocess
import sys
import time
from types import FrameType

STILL_S = 100.0
"""Silence after which stacks are copied: before the operator deletes the pod (two minutes after the limit)."""
DUMP_S = 2.0
"""faulthandler writes within milliseconds; a machine that swaps takes longer."""


class StackDumper:
    """The watchdog's side. Started late, so that short runs have no second process."""

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

    def keep_alive(self, name: str) -> None:
        """Report that Python runs; `name` is the stack file in the run directory."""
        assert self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), f"{name}\n".encode())
        except OSError:
            pass  # the helper is gone; the run continues without it

    def stop(self) -> None:
        """End the helper process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main(arguments: list[str]) -> int:
    """Wait for pings on stdin; copy the stacks when they stop."""
    parent, stacks, uri, still_s = int(arguments[0]), int(arguments[1]), arguments[2], float(arguments[3])
    signal.signal(signal.SIGTERM, _ignore_signal)  # a drained pod still hangs
    name, is_copied = "", False
    while True:
        ready, _, _ = select.select([0], [], [], still_s)
        if ready:
            received = os.read(0, 4096)
            if not received:
                return 0
            name, is_copied = received.decode().split("\n")[-2], False
        elif name and not is_copied:
            is_copied = True
            _copy_stacks(parent, stacks, uri, name, still_s)


def _copy_stacks(parent: int, stacks: int, uri: str, name: str, still_s: float) -> None:
    size = os.fstat(stacks).st_size
    os.kill(parent, signal.SIGUSR1)
    until = time.monotonic() + DUMP_S
    while os.fstat(stacks).st_size == size and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.2)  # the last thread's lines
    text = os.pread(stacks, os.fstat(stacks).st_size, 0)
    notice = f"error: Python has not run for {still_s:.0f} s; stacks of all threads: {uri}/{name}\n"
    sys.stderr.write(notice + text[size:].decode(errors="replace"))
    sys.stderr.flush()
    from pttrainer.runtime.io import storage  # its cloud clients are imported when there is something to copy

    storage.place(uri).write(name, text)


def _ignore_signal(number: int, frame: FrameType | None) -> None:
    """Ignore the signal: this process ends with the one it watches."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
