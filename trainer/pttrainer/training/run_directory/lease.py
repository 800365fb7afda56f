"""The lease of a run directory: one process writes there at a time, and another one is refused with its name.

`lease.json` is taken and renewed by compare-and-set (`Place.write_if`), a few times within its limit, and marked as
released at the end. Another process takes it when it is free, when its holder is surely gone (`holder.life`), or when
it has not changed for the whole limit by that process's own clock: clocks of two machines are never compared. A holder
that was not able to renew for two thirds of the limit (stopped, suspended, cut off) has to renew before its next write;
where somebody else holds the lease by then, the process ends at once, because threads of libraries would go on writing.

Left out: a write that was begun before the process was stopped. It comes to its end when the process goes on, within
the milliseconds until the renewing thread has looked; of a checkpoint that may be some of its arrays, never its commit.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from ptapi.failures import ExitCode
from ptapi.run_directory import LEASE, Lease
from ptapi.spec import PostTrainJob
from pttrainer.errors import OutputConflict, Preempted, StorageError, TrainerError
from pttrainer.runtime.distributed import processes
from pttrainer.runtime.io.place import Place
from pttrainer.runtime.reporting import termination
from pttrainer.runtime.reporting.termination import Attempt, StopRequest
from pttrainer.training.run_directory import lease_holder, run_files

RENEWALS = 6
"""Renewals within the lease limit."""
TRUSTED = 2 / 3
"""Share of the limit for which a renewal allows writes: the rest is for slow writes."""
LOOK_S = 1.0
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that keeps running while the machine sleeps."""


class _Moment(NamedTuple):
    """Two clocks of this machine: one may stop while it is suspended, the other may be set."""

    awake: float
    wall: float

    @classmethod
    def now(cls) -> _Moment:
        return cls(time.clock_gettime(_CLOCK), time.time())

    def passed_s(self) -> float:
        """Return the seconds since then, by the clock that shows more."""
        now = self.now()
        return max(now.awake - self.awake, now.wall - self.wall)


class LeaseWriter:
    """This process's lease of a run directory, renewed by a thread until released. end: ends the process."""

    def __init__(
        self, place: Place, lease: Lease, generation: int, since: _Moment, end: Callable[[int], Any] = os._exit
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
            since, silent_s = _Moment.now(), self._since.passed_s()
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
        content = _content(self._lease)
        for _ in range(3):
            written = self._place.write_if(LEASE, content, self._generation)
            if written is None:
                stored = self._place.read_versioned(LEASE)
                other = lease_holder.read(stored.content)
                if other is not None and other.token != self._lease.token:
                    self._exit(other, silent_s)
                # Ours: the response to a write was lost. None: someone removed it.
                self._generation = stored.generation
                written = stored.generation if stored.content == content else None
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


def take(place: Place, job: PostTrainJob, attempt: Attempt, stop: StopRequest) -> None:
    """Join the other processes, if any, and make the leader the only writer until `attempt.release`.

    Raises OutputConflict, ConfigError, Preempted or StorageError on all of them.
    """
    processes.initialize()
    refusal: TrainerError | None = None
    leader = processes.is_leader()
    if leader:
        try:
            writer = acquire(place, job, lambda: stop.signal)
            place.fence, attempt.release = writer.check, writer.release
            run_files.open_run(job)  # another job may have claimed it meanwhile
        except TrainerError as error:
            refusal = error
    verdict = f"{ExitCode.OK}:" if refusal is None else f"{refusal.exit_code}:{refusal}"
    code, _, message = processes.wait_for_leader(verdict if leader else None).partition(":")
    if int(code) != ExitCode.OK:
        raise refusal or _refused(ExitCode(int(code)), f"the leading process: {message}")
    if not leader:
        place.fence = follower(place)
    attempt.place = place


def _refused(code: ExitCode, message: str) -> TrainerError:
    error = TrainerError(message)
    error.exit_code = code
    return error


@contextmanager
def hold_briefly(place: Place, job: PostTrainJob) -> Iterator[None]:
    """Hold the lease for a moment. Raises OutputConflict, without waiting, if another process may hold it."""
    writer = acquire(place, job, lambda: None, waits=False)
    try:
        yield
    finally:
        writer.release()


def acquire(place: Place, job: PostTrainJob, stopped: Callable[[], str | None], *, waits: bool = True) -> LeaseWriter:
    """Acquire the lease, if necessary after watching its holder.

    Waits for an earlier attempt of the same cluster job, which may still be saving; raises OutputConflict for any
    other live holder.
    """
    mine, watch = lease_holder.lease_of_this_process(job), _HolderWatch()
    while True:
        stored = place.read_versioned(LEASE)
        other = lease_holder.read(stored.content)
        watch.look(stored.generation)
        if other is None or other.token == mine.token or other.released or watch.is_over(other):
            attempt = 1 if other is None else other.attempt + 1
            mine = mine.model_copy(
                update={"attempt": attempt, "acquired": lease_holder.now(), "heartbeat": lease_holder.now()}
            )
            since = _Moment.now()
            generation = place.write_if(LEASE, _content(mine), stored.generation)
            if generation is not None:
                return LeaseWriter(place, mine, generation, since)
            continue
        is_own = mine.uid != "" and other.uid == mine.uid
        if not waits or (watch.is_alive(other) and not is_own):
            raise OutputConflict(_refusal(place, other))
        patience = f"{other.limit_seconds:.0f} s of silence"
        watch.tell(f"{place.uri}: waiting for {lease_holder.describe(other)} to end, or for {patience}")
        if stopped():
            raise Preempted(f"stopped by {stopped()} while waiting for {other.holder}: nothing to save")
        time.sleep(min(LOOK_S, other.limit_seconds / 10))


class _HolderWatch:
    """Observe changes of a lease since this process began to wait."""

    def __init__(self) -> None:
        self._began = self._changed = time.monotonic()
        self._tell_from = self._began + LOOK_S
        self._generation: int | None = None
        self._has_changed = False

    def look(self, generation: int) -> None:
        if generation != self._generation:
            self._has_changed = self._generation is not None
            self._generation, self._changed = generation, time.monotonic()

    def is_over(self, other: Lease) -> bool:
        """Return True if no process holds the lease any more."""
        return lease_holder.life(other) == "gone" or time.monotonic() - self._changed >= other.limit_seconds

    def is_alive(self, other: Lease) -> bool:
        """Return True if the holder is alive. A killed process still exists briefly, so look twice."""
        is_running = lease_holder.life(other) == "running" and time.monotonic() - self._began >= LOOK_S
        return self._has_changed or is_running

    def tell(self, text: str) -> None:
        if time.monotonic() >= self._tell_from:
            self._tell_from = time.monotonic() + 60.0
            print(text, file=sys.stderr, flush=True)


def _refusal(place: Place, other: Lease) -> str:
    return (
        f"spec.output.uri: {place.uri}: {lease_holder.describe(other)} writes there; accepted: one process at a time; "
        "hint: wait until it ends, stop it, or give this job another name or spec.output.uri"
    )


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


def _content(lease: Lease) -> bytes:
    return (lease.model_dump_json(by_alias=True, indent=2) + "\n").encode()
