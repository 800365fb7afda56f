"""Notices that a run stands still, writes down where, and ends it, so that it is started again from its checkpoint.

A thread of each process looks at what the reporter saw last. No finished step for too long is a hang; loading,
compiling, evaluating and saving have limits of their own. A process whose peer hangs waits in a collective forever,
finishes no step either, and so ends by itself: nobody has to tell it. SIGUSR1 writes the stacks and ends nothing.

A thread that holds Python's lock for ever keeps this one from running; collectives, files, sockets and child processes
all wait without it. For that case faulthandler's own thread, which needs no lock, is wound up again and again: when
nobody does so any more, it writes all stacks to stderr and ends the process. Long before that, a process beside this
one (`courier`) brings them into the run directory.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from ptapi import run_directory
from ptapi.failures import ExitCode
from ptapi.hang_timeout import limit_s
from pttrainer.runtime.io.storage import Place
from pttrainer.runtime.reporting import termination
from pttrainer.runtime.reporting.heartbeat import Heartbeats
from pttrainer.runtime.reporting.progress import Beat
from pttrainer.runtime.reporting.stack_dumper import Courier
from pttrainer.runtime.reporting.termination import Attempt

LOOK_S = 1.0
WRITE_S = 20.0
"""The run directory may be what hangs: its stacks are waited for this long."""
LOCKED_S = 600.0
"""Python's lock is never held for this long by anything that goes on."""
REWIND_S = 30.0
STDERR = 2
COURIER_S = 60.0
"""A run of this age gets a courier."""
STAY_S = 5.0
"""The process that the others found each other by leaves last, else they would be aborted before they wrote."""


class Watchdog:
    """`beat`: what the reporter saw last; `end`: ends the process with a code, replaced by tests; `heartbeats`: tells
    others, where there are any."""

    def __init__(
        self,
        beat: Callable[[], Beat],
        place: Place,
        process: int,
        asked: float | None,
        end: Callable[[int], Any] = os._exit,
        look_s: float = LOOK_S,
        heartbeats: Heartbeats | None = None,
    ) -> None:
        self._beat, self._place, self._process, self._asked = beat, place, process, asked
        self._end, self._look_s = end, look_s
        self._stopped = threading.Event()
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115  written by the signal handler as long as we live
        self._seen = 0
        self._heartbeats = heartbeats
        self._wound_up = float("-inf")
        self._born = time.monotonic()
        self._courier: Courier | None = None
        faulthandler.register(signal.SIGUSR1, file=self._stacks, all_threads=True)
        self._thread = threading.Thread(target=self._watch, name="hang watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No more looking."""
        self._stopped.set()
        self._thread.join(timeout=10)
        if self._courier is not None:
            self._courier.stop()
        faulthandler.cancel_dump_traceback_later()
        faulthandler.unregister(signal.SIGUSR1)
        self._stacks.close()

    def _watch(self) -> None:
        while not self._stopped.wait(self._look_s):
            beat = self._beat()
            self._wind_up(beat)
            if self._heartbeats is not None:
                self._heartbeats.tell(beat)
            still_s, limit = time.monotonic() - beat.since, limit_s(beat.stage, beat.typical_s, self._asked)
            if still_s > limit:
                self._give_up(beat, still_s, limit)
                return
            self._keep_stacks(beat)

    def _wind_up(self, beat: Beat) -> None:
        now = time.monotonic()
        if now - self._wound_up < REWIND_S:
            return
        self._wound_up = now
        faulthandler.dump_traceback_later(LOCKED_S, exit=True, file=STDERR)
        if self._courier is None and now - self._born >= COURIER_S:
            self._courier = Courier(self._place.uri, self._stacks.fileno())
        if self._courier is not None:
            self._courier.tell(run_directory.stack_file(beat.attempt, self._process))

    def _keep_stacks(self, beat: Beat) -> None:
        """Moves what SIGUSR1 wrote since the last look into the run directory, and to whoever reads the log."""
        size = os.fstat(self._stacks.fileno()).st_size
        if size > self._seen:
            text = os.pread(self._stacks.fileno(), size, 0)
            sys.stderr.write(text[self._seen :].decode(errors="replace"))
            self._seen = size
            self._write(beat, text)

    def _give_up(self, beat: Beat, still_s: float, limit: float) -> None:
        faulthandler.dump_traceback(file=self._stacks, all_threads=True)
        self._keep_stacks(beat)
        name = run_directory.stack_file(beat.attempt, self._process)
        message = (
            f"hang: no progress for {still_s:.0f} s after step {beat.step} while {beat.stage} (limit {limit:.0f} s); "
            f"stacks of all threads: {self._place.uri}/{name}; hint: a step that takes longer needs "
            "spec.runPolicy.hangTimeoutSeconds; else look at what each process waits for"
        )
        print(f"error: {message}", file=sys.stderr, flush=True)
        report = lambda: termination.report(ExitCode.HANG, message, Attempt(self._place, beat.step))  # noqa: E731
        _within(WRITE_S, report)
        if self._process == 0:
            time.sleep(STAY_S)
        self._end(ExitCode.HANG)

    def _write(self, beat: Beat, text: bytes) -> None:
        _within(WRITE_S, lambda: self._place.write(run_directory.stack_file(beat.attempt, self._process), text))


def _within(seconds: float, action: Callable[[], object]) -> None:
    """Does it in a thread of its own, and goes on without it after a while."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(timeout=seconds)
