"""The lease of a run directory: one process writes there at a time, and another one is refused with its name.

`lease.json` is taken and renewed by compare-and-set (`Place.write_if`), a few times within its limit, and marked as
released at the end. Another process takes it when it is free, when its holder is surely gone (`holder.life`), or when
it has not changed for the whole limit by that process's own clock: clocks of two machines are never compared. A holder
that was not able to renew for two thirds of the limit (stopped, suspended, cut off) has to renew before its next write;
where somebody else holds the lease by then, the process ends at once, because threads of libraries would go on writing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ptapi.failures import ExitCode
from ptapi.run_directory import LEASE, Lease
from ptapi.spec import PostTrainJob
from pttrainer.errors import OutputConflict, Preempted, TrainerError
from pttrainer.runtime.distributed import processes
from pttrainer.runtime.io.place import Place
from pttrainer.runtime.reporting.termination import Attempt, StopRequest
from pttrainer.training.run_directory import lease_holder, run_files
from pttrainer.training.run_directory.lease_writer import LeaseWriter, Moment, content, follower

LOOK_S = 1.0


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
            since = Moment.now()
            generation = place.write_if(LEASE, content(mine), stored.generation)
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
