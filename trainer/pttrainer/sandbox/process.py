"""One child process that answers messages, seen from its parent, which the child can never block.

Its pipes are read and written only as far as they are ready. Every message carries a token that its answer must repeat,
so unsolicited output (from a copy that the user's code forked, say) is not taken for an answer. A child is killed with
everything it started: its process group, and whatever left that group but still carries its mark in the environment
(Linux; elsewhere the group alone).
"""

import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from pttrainer.sandbox.child import MARK

LONGEST_ANSWER = 16 << 20
"""Bytes."""
PIECE = 1 << 16
DYING_S = 0.1
"""Time between the end of a child's output and its exit."""
SWEEPS = 50
"""Maximum rounds of killing leftover processes; each may have started others since the last round."""


class ChildDied(Exception):
    """The child will not answer; the message says why."""


class Process:
    """A newly started child."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(16)
        self._word = ""
        self._unsent = memoryview(b"")
        self._received = bytearray()
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-m", "pttrainer.sandbox.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), MARK: self._mark},
        )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        self._input, self._answers, self._log = self._popen.stdin, self._popen.stdout, self._popen.stderr
        for file in (self._input, self._answers, self._log):
            os.set_blocking(file.fileno(), False)

    def waits_for(self) -> list[tuple[IO[bytes], int]]:
        """Return the files, and the event of each, to wait for."""
        files = [(self._answers, selectors.EVENT_READ)]
        if not self._log.closed:
            files.append((self._log, selectors.EVENT_READ))
        if self._unsent:
            files.append((self._input, selectors.EVENT_WRITE))
        return files

    def ask(self, message: Any) -> None:
        """Begin to send a message; raise ChildDied. Earlier output does not answer it."""
        self._word = secrets.token_hex(8)
        self._unsent = memoryview(json.dumps([self._word, message]).encode() + b"\n")
        self.send()

    def send(self) -> None:
        """Send as much as the child accepts now; raise ChildDied."""
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._input.fileno(), self._unsent) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            raise ChildDied(self._death()) from None

    def receive(self) -> dict[str, Any] | None:
        """Read available output; return the answer, or None if there is none yet. Raise ChildDied."""
        try:
            piece = os.read(self._answers.fileno(), PIECE)
        except BlockingIOError:
            return None
        if not piece:
            raise ChildDied(self._death())
        self._received += piece
        if b"\n" in piece:
            *lines, rest = bytes(self._received).split(b"\n")
            self._received = bytearray(rest)
            for line in lines:
                if (answer := _answer(line, self._word)) is not None:
                    return answer
        if len(self._received) > LONGEST_ANSWER:
            raise ChildDied(f"its answer has more than {LONGEST_ANSWER} bytes")
        return None

    def _death(self) -> str:
        """Return how it ended, if known. The process is not reaped: `kill` needs its pid to end what it started."""
        patience_s = time.monotonic() + DYING_S
        while hasattr(os, "waitid"):  # not on every macOS
            status_info = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if status_info is not None:
                is_exit = status_info.si_code == os.CLD_EXITED
                status = status_info.si_status
                return f"its process died ({f'exit code {status}' if is_exit else _signal(status)})"
            if time.monotonic() > patience_s:
                break
            time.sleep(DYING_S / 20)
        return "its process died"  # or closed all of its files

    def printed(self) -> bytes:
        """Return available output of the user's code."""
        try:
            piece = b"" if self._log.closed else os.read(self._log.fileno(), PIECE)
        except BlockingIOError:
            return b""
        if not piece:
            self._log.close()  # the user's code closed it
        return piece

    def kill(self) -> None:
        """Kill the process and everything it started."""
        if self._popen.returncode is not None:
            return  # already reaped: its pid may belong to another process by now
        try:
            os.killpg(self._popen.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._popen.wait()
        for file in (self._input, self._answers, self._log):
            file.close()
        for _ in range(SWEEPS):
            left = _marked(self._mark)
            if not left:
                return
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass


def _signal(number: int) -> str:
    return next((each_signal.name for each_signal in signal.Signals if each_signal == number), f"signal {number}")


def _answer(line: bytes, word: str) -> dict[str, Any] | None:
    """Return the answer in a line if it repeats the token."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match document:
        case [echo, dict() as answer] if echo == word:
            return answer
    return None


def _marked(mark: str) -> list[int]:
    """Return processes with this mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    pids = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            # A zombie has an empty one.
            if wanted in (place / "environ").read_bytes().split(b"\0"):
                pids.append(int(place.name))
        except OSError:
            continue  # it has ended, or belongs to another user
    return pids
