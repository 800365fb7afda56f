"""One child process that answers messages, as its parent sees it: nothing that the child does makes the parent wait.

Its pipes are read and written only as far as they are ready. Every message carries a word that its answer must
repeat, so what a child says unasked (a copy of itself that the user's code forked, say) is no answer to anything. A
child is killed with all that it started: its process group, and whatever left that group but still carries its mark
in the environment (Linux; elsewhere the group alone).
"""

from __future__ import annotations

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
"""Between the end of its answers and its own."""
SWEEPS = 50
"""Most looks for processes that are left; each may have started others since the last look."""


class Dead(Exception):
    """The child will not answer; the message says why."""


class Process:
    """A child that was just started."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(16)
        self._word = ""
        self._unsent = memoryview(b"")
        self._heard = bytearray()
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
        """The files, and the event of each, after which there is something to do."""
        files = [(self._answers, selectors.EVENT_READ)]
        if not self._log.closed:
            files.append((self._log, selectors.EVENT_READ))
        if self._unsent:
            files.append((self._input, selectors.EVENT_WRITE))
        return files

    def ask(self, message: Any) -> None:
        """Begins to send a message; raises Dead. What was said before is no answer to it."""
        self._word = secrets.token_hex(8)
        self._unsent = memoryview(json.dumps([self._word, message]).encode() + b"\n")
        self.send()

    def send(self) -> None:
        """As much as the child takes now; raises Dead."""
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._input.fileno(), self._unsent) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            raise Dead(self._death()) from None

    def hear(self) -> dict[str, Any] | None:
        """Takes in what the child has said by now: the answer, or None where there is none yet. Raises Dead."""
        try:
            piece = os.read(self._answers.fileno(), PIECE)
        except BlockingIOError:
            return None
        if not piece:
            raise Dead(self._death())
        self._heard += piece
        if b"\n" in piece:
            *lines, rest = bytes(self._heard).split(b"\n")
            self._heard = bytearray(rest)
            for line in lines:
                if (answer := _answer(line, self._word)) is not None:
                    return answer
        if len(self._heard) > LONGEST_ANSWER:
            raise Dead(f"its answer has more than {LONGEST_ANSWER} bytes")
        return None

    def _death(self) -> str:
        """How it ended, where that is known. It is only looked at: `kill` ends what it started by its number."""
        patience_s = time.monotonic() + DYING_S
        while hasattr(os, "waitid"):  # not on every macOS
            found = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                is_exit = found.si_code == os.CLD_EXITED
                status = found.si_status
                return f"its process died ({f'exit code {status}' if is_exit else _signal(status)})"
            if time.monotonic() > patience_s:
                break
            time.sleep(DYING_S / 20)
        return "its process died"  # or closed all of its files

    def printed(self) -> bytes:
        """Some of what the user's code has printed by now."""
        try:
            piece = b"" if self._log.closed else os.read(self._log.fileno(), PIECE)
        except BlockingIOError:
            return b""
        if not piece:
            self._log.close()  # the user's code closed it
        return piece

    def kill(self) -> None:
        """Ends it, and what it started."""
        if self._popen.returncode is not None:
            return  # it was waited for: its number may be another's by now
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
    return next((known.name for known in signal.Signals if known == number), f"signal {number}")


def _answer(line: bytes, word: str) -> dict[str, Any] | None:
    """What a line answers, where it repeats the word."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match found:
        case [said, dict() as answer] if said == word:
            return answer
    return None


def _marked(mark: str) -> list[int]:
    """Processes with this mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            # A process that ended and was not yet waited for has an empty one.
            if wanted in (place / "environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
        except OSError:
            continue  # it ended, or it is somebody else's
    return found
