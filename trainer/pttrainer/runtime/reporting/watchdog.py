"""Detects a hung run, records its stacks, and ends it, so that it restarts from its checkpoint.

A thread in each process watches the reporter's last sign of life. Too long without a finished step is a hang; loading,
compiling, evaluating and saving have limits of their own. A process whose peer hangs waits in a collective forever,
finishes no step either, and so ends by itself without being told. SIGUSR1 writes the stacks and ends nothing.

A thread that never releases the GIL keeps this one from running; collectives, files, sockets and child processes all
release it while they wait. For that case faulthandler's own timer, which needs no GIL, is rearmed regularly: once
rearming stops, it writes all stacks to stderr and ends the process. Long before that, a helper process (`stack_dumper`)
copies them into the run directory.
"""

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
from pttrainer.runtime.io.place import Place
from pttrainer.runtime.reporting import termination
from pttrainer.runtime.reporting.heartbeat import Heartbeats
from pttrainer.runtime.reporting.progress import Beat
from pttrainer.runtime.reporting.stack_dumper import StackDumper
from pttrainer.runtime.reporting.termination import Attempt

POLL_S = 1.0
WRITE_S = 20.0
"""The run directory itself may hang: writing stacks waits no longer than this."""
LOCKED_S = 600.0
"""No healthy operation holds the GIL for this long."""
REARM_S = 30.0
STDERR = 2
STACK_DUMPER_AFTER_S = 60.0
"""A run of this age starts the helper process."""
COORDINATOR_LINGER_S = 5.0
"""The coordinator process leaves last; otherwise the others would be aborted before they have written."""


class Watchdog:
    """Ends a hung process.

    beat: returns the last sign of life; end: ends the process with a code, replaced by tests; heartbeats: reports
    to observers, if there are any.
    """

    def __init__(
        self,
        beat: Callable[[], Beat],
        place: Place,
        process: int,
        hang_timeout_s: float | None,
        end: Callable[[int], Any] = os._exit,
        poll_s: float = POLL_S,
        heartbeats: Heartbeats | None = None,
    ) -> None:
        self._beat, self._place, self._process, self._hang_timeout_s = beat, place, process, hang_timeout_s
        self._end, self._poll_s = end, poll_s
        self._stopped = threading.Event()
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115  written by the signal handler as long as we live
        self._copied_bytes = 0
        self._heartbeats = heartbeats
        self._rearmed_at = float("-inf")
        self._started_at = time.monotonic()
        self._stack_dumper: StackDumper | None = None
        faulthandler.register(signal.SIGUSR1, file=self._stacks, all_threads=True)
        self._thread = threading.Thread(target=self._watch, name="hang watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()
        self._thread.join(timeout=10)
        if self._stack_dumper is not None:
            self._stack_dumper.stop()
        faulthandler.cancel_dump_traceback_later()
        faulthandler.unregister(signal.SIGUSR1)
        self._stacks.close()

    def _watch(self) -> None:
        while not self._stopped.wait(self._poll_s):
            beat = self._beat()
            self._rearm_timer(beat)
            if self._heartbeats is not None:
                self._heartbeats.update(beat)
            still_s, limit = time.monotonic() - beat.since, limit_s(beat.stage, beat.typical_s, self._hang_timeout_s)
            if still_s > limit:
                self._end_hung_run(beat, still_s, limit)
                return
            self._keep_stacks(beat)

    def _rearm_timer(self, beat: Beat) -> None:
        now = time.monotonic()
        if now - self._rearmed_at < REARM_S:
            return
        self._rearmed_at = now
        faulthandler.dump_traceback_later(LOCKED_S, exit=True, file=STDERR)
        if self._stack_dumper is None and now - self._started_at >= STACK_DUMPER_AFTER_S:
            self._stack_dumper = StackDumper(self._place.uri, self._stacks.fileno())
        if self._stack_dumper is not None:
            self._stack_dumper.keep_alive(run_directory.stack_file(beat.attempt, self._process))

    def _keep_stacks(self, beat: Beat) -> None:
        """Append what SIGUSR1 wrote since the last poll to the run directory and to stderr."""
        size = os.fstat(self._stacks.fileno()).st_size
        if size > self._copied_bytes:
            text = os.pread(self._stacks.fileno(), size, 0)
            sys.stderr.write(text[self._copied_bytes :].decode(errors="replace"))
            self._copied_bytes = size
            self._write(beat, text)

    def _end_hung_run(self, beat: Beat, still_s: float, limit: float) -> None:
        faulthandler.dump_traceback(file=self._stacks, all_threads=True)
        self._keep_stacks(beat)
        name = run_directory.stack_file(beat.attempt, self._process)
        message = (
            f"hang: no progress for {still_s:.0f} s after step {beat.step} while {beat.stage} (limit {limit:.0f} s); "
            f"stacks of all threads: {self._place.uri}/{name}; hint: if steps take longer, raise "
            "spec.runPolicy.hangTimeoutSeconds; otherwise check what each process is waiting for"
        )
        print(f"error: {message}", file=sys.stderr, flush=True)
        report = lambda: termination.report(ExitCode.HANG, message, Attempt(self._place, beat.step))  # noqa: E731
        _within(WRITE_S, report)
        if self._process == 0:
            time.sleep(COORDINATOR_LINGER_S)
        self._end(ExitCode.HANG)

    def _write(self, beat: Beat, text: bytes) -> None:
        _within(WRITE_S, lambda: self._place.write(run_directory.stack_file(beat.attempt, self._process), text))


def _within(seconds: float, action: Callable[[], object]) -> None:
    """Run the action in a thread of its own; continue without it after this many seconds."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(timeout=seconds)
