"""What a holder of the lease does: it renews it, looks at it before every write, and ends when somebody else has it.

Left out: a write that was begun before the process was stopped. It comes to its end when the process goes on, within
the milliseconds until the renewing thread has looked; of a checkpoint that may be some of its arrays, never its commit.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from ptapi.failures import ExitCode
from ptapi.run_directory import LEASE, Lease
from pttrainer.errors import OutputConflict, StorageError
from pttrainer.runtime.io.place import Place
from pttrainer.runtime.reporting import termination
from pttrainer.runtime.reporting.termination import Attempt
from pttrainer.training.run_directory import lease_holder

RENEWALS = 6
"""Renewals within the lease limit."""
TRUSTED = 2 / 3
"""Share of the limit for which a renewal allows writes: the rest is for slow writes."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that keeps running while the machine sleeps."""


class Moment(NamedTuple):
    """Two clocks of this machine: one may stop while it is suspended, the other may be set."""

    awake: float
    wall: float

    @classmethod
    def now(cls) -> Moment:
        """Return this moment."""
        return cls(time.clock_gettime(_CLOCK), time.time())

    def passed_s(self) -> float:
        """Return the seconds since then, by the clock that shows more."""
        now = self.now()
        return max(now.awake - self.awake, now.wall - self.wall)


class LeaseWriter:
    """This process's lease of a run directory, renewed by a thread until released. end: ends the process."""

    def __init__(
        self, place: Place, lease: Lease, generation: int, since: Moment, end: Callable[[int], Any] = os._exit
    ) -> None:
        self._place, self._lease, self._generation, self._since, self._end = place, lease, generation, since, end
        self._busy, self._stopped = threading.RLock(), threading.Event()
        self._thread = threading.Thread(target=self._renew_until_stopped, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Return if this process may write now, else renew first. Raises StorageError if that is unknown."""
        if self._since.passed_s() >= TRUSTED * self._lease.limit_seconds:
            self.renew()

    def renew(self) -> None:
        """Write a new heartbeat; end the process if another one holds the lease. Raises StorageError."""
        with self._busy:
            since, silent_s = Moment.now(), self._since.passed_s()
            renewed = {"heartbeat": lease_holder.now(), "renewals": self._lease.renewals + 1}
            self._lease = self._lease.model_copy(update=renewed)
            self._write(silent_s)
            self._since = since

    def release(self) -> None:
        """Release the lease. If the bucket is unreachable, the next process waits for the limit."""
        self._stopped.set()
        self._thread.join(timeout=10)
        with self._busy, suppress(StorageError):
            self._lease = self._lease.model_copy(update={"released": lease_holder.now()})
            self._write(self._since.passed_s())

    def _renew_until_stopped(self) -> None:
        while not self._stopped.wait(self._lease.limit_seconds / RENEWALS):
            with suppress(StorageError):  # the next one may get through; until then `check` lets nobody write
                self.renew()

    def _write(self, silent_s: float) -> None:
        text = content(self._lease)
        for _ in range(3):
            written = self._place.write_if(LEASE, text, self._generation)
            if written is None:
                stored = self._place.read_versioned(LEASE)
                other = lease_holder.read(stored.content)
                if other is not None and other.token != self._lease.token:
                    self._exit(other, silent_s)
                # Ours: the response to a write was lost. None: someone removed it.
                self._generation = stored.generation
                written = stored.generation if stored.content == text else None
            if written is not None:
                self._generation = written
                return
        raise StorageError(f"{self._place.uri}/{LEASE}: cannot be written: it changes between every read and write")

    def _exit(self, other: Lease, silent_s: float) -> None:
        exit_after_losing_lease(
            f"{self._place.uri}: this process was stopped, suspended or disconnected for {silent_s:.0f} s, and "
            f"{other.holder} has held the lease since {other.acquired}; this process writes no more; hint: that "
            "run resumed from the last checkpoint of this one",
            self._end,
        )


def exit_after_losing_lease(message: str, end: Callable[[int], Any]) -> None:
    """End the process without writing to the run directory, which another process owns now."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    termination.report(ExitCode.OUTPUT_CONFLICT, message, Attempt())
    sys.stdout.flush()
    end(ExitCode.OUTPUT_CONFLICT)
    raise OutputConflict(message)


def follower(place: Place, end: Callable[[int], Any] = os._exit) -> Callable[[], None]:
    """Return the fence of a process that does not lead: it checks its leader's lease."""
    token = _token(place)

    def check() -> None:
        if _token(place) != token:
            exit_after_losing_lease(
                f"{place.uri}: {lease_holder.current_writer(place)} writes there, no longer this run's leader", end
            )

    return check


def _token(place: Place) -> str:
    other = lease_holder.read(place.read_versioned(LEASE).content)
    return "" if other is None else other.token


def content(lease: Lease) -> bytes:
    """Return the text of `lease.json`."""
    return (lease.model_dump_json(by_alias=True, indent=2) + "\n").encode()
