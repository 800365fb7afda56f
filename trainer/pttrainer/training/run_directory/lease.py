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
from pttrainer.runtime.io.storage import Place
from pttrainer.runtime.reporting import termination
from pttrainer.runtime.reporting.termination import Attempt, StopRequest
from pttrainer.training.run_directory import lease_holder, run_files

RENEWALS = 6
"""In the time of the limit."""
TRUSTED = 2 / 3
"""Share of the limit for which a renewal lets the holder write: the rest is for writes that take long."""
LOOK_S = 1.0
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while the machine sleeps."""


class _Moment(NamedTuple):
    """Two clocks of this machine: one may stand still with it, the other may be set."""

    awake: float
    wall: float

    @classmethod
    def now(cls) -> _Moment:
        return cls(time.clock_gettime(_CLOCK), time.time())

    def passed_s(self) -> float:
        """Seconds since then, by the clock that says more."""
        now = self.now()
        return max(now.awake - self.awake, now.wall - self.wall)


class Writer:
    """This process's hold on a run directory, renewed by a thread until it is released. end: ends the process."""

    def __init__(
        self, place: Place, lease: Lease, generation: int, since: _Moment, end: Callable[[int], Any] = os._exit
    ) -> None:
        self._place, self._lease, self._generation, self._since, self._end = place, lease, generation, since, end
        self._busy, self._stopped = threading.RLock(), threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Returns where this process may write now. Raises StorageError where that cannot be found out."""
        if self._since.passed_s() >= TRUSTED * self._lease.limit_seconds:
            self.renew()

    def renew(self) -> None:
        """A new heartbeat; ends the process where somebody else holds the lease. Raises StorageError."""
        with self._busy:
            since, silent_s = _Moment.now(), self._since.passed_s()
            renewed = {"heartbeat": lease_holder.now(), "renewals": self._lease.renewals + 1}
            self._lease = self._lease.model_copy(update=renewed)
            self._put(silent_s)
            self._since = since

    def release(self) -> None:
        """Lets go; a bucket that cannot be reached lets the next one wait for the limit."""
        self._stopped.set()
        self._thread.join(timeout=10)
        with self._busy, suppress(StorageError):
            self._lease = self._lease.model_copy(update={"released": lease_holder.now()})
            self._put(self._since.passed_s())

    def _keep(self) -> None:
        while not self._stopped.wait(self._lease.limit_seconds / RENEWALS):
            with suppress(StorageError):  # the next one may get through; until then `check` lets nobody write
                self.renew()

    def _put(self, silent_s: float) -> None:
        content = _content(self._lease)
        for _ in range(3):
            written = self._place.write_if(LEASE, content, self._generation)
            if written is None:
                seen = self._place.read_versioned(LEASE)
                there = lease_holder.read(seen.content)
                if there is not None and there.token != self._lease.token:
                    self._lose(there, silent_s)
                # Ours: the answer to a write got lost. None: somebody removed it.
                self._generation = seen.generation
                written = seen.generation if seen.content == content else None
            if written is not None:
                self._generation = written
                return
        raise StorageError(f"{self._place.uri}/{LEASE}: cannot be written: it changes between every look and write")

    def _lose(self, there: Lease, silent_s: float) -> None:
        end_of_loser(
            f"{self._place.uri}: this process was stopped, suspended or cut off for {silent_s:.0f} s, and "
            f"{there.holder} has written there since {there.acquired}; nothing more is written from here; hint: that "
            "run went on from the last checkpoint of this one",
            self._end,
        )


def end_of_loser(message: str, end: Callable[[int], Any]) -> None:
    """Ends the process without another word in the run directory, which is somebody else's by now."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    termination.report(ExitCode.OUTPUT_CONFLICT, message, Attempt())
    sys.stdout.flush()
    end(ExitCode.OUTPUT_CONFLICT)
    raise OutputConflict(message)


def take(place: Place, job: PostTrainJob, attempt: Attempt, stop: StopRequest) -> None:
    """Joins the other processes, if there are any, and makes the one that leads the only writer of the directory, until
    `attempt.release`. Raises OutputConflict, ConfigError, Preempted or StorageError on all of them."""
    processes.initialize()
    refusal: TrainerError | None = None
    leader = processes.is_leader()
    if leader:
        try:
            writer = acquire(place, job, lambda: stop.signal)
            place.fence, attempt.release = writer.check, writer.release
            run_files.open_run(job)  # another job may have claimed it since we looked
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
def briefly(place: Place, job: PostTrainJob) -> Iterator[None]:
    """The lease for a moment. Raises OutputConflict, without waiting, where somebody may hold it."""
    writer = acquire(place, job, lambda: None, waits=False)
    try:
        yield
    finally:
        writer.release()


def acquire(place: Place, job: PostTrainJob, stopped: Callable[[], str | None], *, waits: bool = True) -> Writer:
    """Takes the lease, if need be after watching its holder. An earlier attempt of the same job in a cluster, which may
    still be saving, is waited for; another holder that lives is refused (OutputConflict)."""
    mine, watch = lease_holder.of_this_process(job), _Watch()
    while True:
        seen = place.read_versioned(LEASE)
        there = lease_holder.read(seen.content)
        watch.look(seen.generation)
        if there is None or there.token == mine.token or there.released or watch.is_over(there):
            attempt = 1 if there is None else there.attempt + 1
            mine = mine.model_copy(
                update={"attempt": attempt, "acquired": lease_holder.now(), "heartbeat": lease_holder.now()}
            )
            since = _Moment.now()
            generation = place.write_if(LEASE, _content(mine), seen.generation)
            if generation is not None:
                return Writer(place, mine, generation, since)
            continue
        is_own = mine.uid != "" and there.uid == mine.uid
        if not waits or (watch.is_alive(there) and not is_own):
            raise OutputConflict(_refusal(place, there))
        patience = f"{there.limit_seconds:.0f} s of silence"
        watch.tell(f"{place.uri}: waiting for {lease_holder.told(there)}: until its end, or {patience}")
        if stopped():
            raise Preempted(f"stopped by {stopped()} while waiting for {there.holder}: nothing to save")
        time.sleep(min(LOOK_S, there.limit_seconds / 10))


class _Watch:
    """What a lease did while this process looked."""

    def __init__(self) -> None:
        self._began = self._changed = time.monotonic()
        self._tell_from = self._began + LOOK_S
        self._generation: int | None = None
        self._has_changed = False

    def look(self, generation: int) -> None:
        if generation != self._generation:
            self._has_changed = self._generation is not None
            self._generation, self._changed = generation, time.monotonic()

    def is_over(self, there: Lease) -> bool:
        """Whether nobody holds it any more."""
        return lease_holder.life(there) == "gone" or time.monotonic() - self._changed >= there.limit_seconds

    def is_alive(self, there: Lease) -> bool:
        """A process that was killed is still there for a moment, so a second look is needed."""
        is_there = lease_holder.life(there) == "running" and time.monotonic() - self._began >= LOOK_S
        return self._has_changed or is_there

    def tell(self, text: str) -> None:
        if time.monotonic() >= self._tell_from:
            self._tell_from = time.monotonic() + 60.0
            print(text, file=sys.stderr, flush=True)


def _refusal(place: Place, there: Lease) -> str:
    return (
        f"spec.output.uri: {place.uri}: {lease_holder.told(there)} writes there; accepted: one process at a time; "
        "hint: wait for its end or end it, or give this job another name or spec.output.uri"
    )


def follower(place: Place, end: Callable[[int], Any] = os._exit) -> Callable[[], None]:
    """The fence of a process that does not lead: its leader's lease."""
    token = _token(place)

    def check() -> None:
        if _token(place) != token:
            end_of_loser(f"{place.uri}: {lease_holder.of_place(place)} writes there, no longer this run's leader", end)

    return check


def _token(place: Place) -> str:
    there = lease_holder.read(place.read_versioned(LEASE).content)
    return "" if there is None else there.token


def _content(lease: Lease) -> bytes:
    return (lease.model_dump_json(by_alias=True, indent=2) + "\n").encode()
