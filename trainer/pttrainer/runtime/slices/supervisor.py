"""A supervisor: starts the trainer of its process in each generation, restarts it in place, and reports how it is.

`step` does what is due and returns; the command calls it until the run ends, tests call it with a clock of their own. A
supervisor holds no lease and writes nothing but its own report and, as keeper, the generation. Errors of storage are
left to the next step: the trainer continues meanwhile.
"""

import secrets
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from ptapi.failures import ExitCode
from ptapi.run_directory import Generation, Member
from pttrainer.errors import StorageError
from pttrainer.runtime.io.place import Place
from pttrainer.runtime.slices import next_generation
from pttrainer.runtime.slices.meeting import Meeting
from pttrainer.runtime.slices.next_generation import Key, Limits, Timing
from pttrainer.runtime.slices.trainer_process import TrainerProcess

BEATS = 6
"""Reports within the limit after which a silent supervisor is lost."""
FINISH_S = 60.0
"""How long a trainer may end after the first process has finished the run."""
OUTAGE_PAUSE_S, LONGEST_PAUSE_S = 10.0, 600.0
"""Pause after a generation that could not reach a network service; doubles."""
SIGNALLED = 128
"""A trainer killed by signal N is reported as 128 + N, as a shell does."""


@dataclass
class _Watch:
    """Since when the keeper has known what it bases decisions on."""

    number: int = -1
    is_running: bool = False
    since: float = 0.0
    ended_at: float | None = None

    def look(self, generation: Generation, now: float) -> None:
        is_running = bool(generation.slices)
        if is_running != self.is_running or (is_running and generation.number != self.number):
            self.since, self.ended_at = now, None
        self.number, self.is_running = generation.number, is_running


@dataclass
class Supervisor:
    """The supervisor of one trainer process.

    start: starts the trainer of a generation with its rank; message: what a trainer that ended said of it; limit_s:
    silence after which another supervisor is lost; patience_s: how long the first generation waits for all slices, and
    a returned slice for the run to have trained in peace.
    """

    place: Place
    key: Key
    address: str
    limits: Limits
    start: Callable[[Generation, int], TrainerProcess]
    limit_s: float
    patience_s: float
    now: float
    message: Callable[[], str] = lambda: ""
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    verdict: str = ""
    """Why the run ended, once `step` returns."""

    def __post_init__(self) -> None:
        """Join the meeting."""
        self._meeting = Meeting(self.place, self.limits.job_uid, self.limit_s)
        self._member = Member(token=self.token, address=self.address)
        self._trainer: TrainerProcess | None = None
        self._is_terminated = self._is_warned = False
        self._watch = _Watch(since=self.now)
        self._due = self._reported_at = float("-inf")
        self._written: Member | None = None
        self._finished_at: float | None = None

    @property
    def member(self) -> Member:
        """Return what this supervisor reports."""
        return self._member

    def leave(self) -> None:
        """End as soon as the trainer has saved: the pod was asked to stop."""
        self._update(leaving=True)

    def step(self, now: float) -> int | None:
        """Do what is due; return the exit code once the run, or this supervisor's part in it, has ended."""
        self.now = now
        self._look_at_trainer()
        if now < self._due and (self._is_warned or not self._is_news()):
            return None
        self._due = now + self.limit_s / BEATS
        try:
            return self._meet()
        except (OSError, StorageError) as error:
            if not self._is_warned:
                print(f"warning: supervisor: {error}; trying again", file=sys.stderr, flush=True)
            self._is_warned = True
            return None

    def _meet(self) -> int | None:
        generation = self._meeting.read_generation(self.now)
        code = self._obey(generation)
        self._report()
        if code is None:
            self._keep()
            if self._meeting.generation is not generation:
                code = self._obey(self._meeting.generation)
                self._report()
        if code is not None and self._meeting.generation.keeper == self.token:
            self._meeting.write_generation(self._meeting.generation.model_copy(update={"keeper": ""}), self.now)
        self._is_warned = False
        return code

    def _obey(self, generation: Generation) -> int | None:
        """Do what the generation wants of this process; return the exit code if it has ended."""
        if generation.verdict is not None:
            return self._finish(generation, generation.verdict)
        is_member = self.token in generation.members
        if self._member.generation != (generation.number if is_member else 0):
            if not self._is_ended():
                return None
            self._update(generation=0, state="idle", code=None, message="")
            if is_member and not self._member.leaving:
                self._update(generation=generation.number, state="ready")
        if self._member.state == "ready" and generation.started and not self._member.leaving:
            self._trainer = self.start(generation, generation.members.index(self.token))
            self._is_terminated = False
            self._update(state="running")
        if self._member.state == "running" and (generation.stopping or self._member.leaving):
            self._terminate()
        if self._member.leaving and self._member.state != "running":
            self.verdict = "stopped"
            return int(ExitCode.PREEMPTED_SAVED)
        return None

    def _finish(self, generation: Generation, code: int) -> int | None:
        """Return the run's exit code once the trainer is gone; after a success it may still be ending."""
        self._finished_at = self._finished_at or self.now
        is_patient = code == ExitCode.OK and self.now - self._finished_at < FINISH_S
        if self._trainer is not None and self._trainer.poll() is None:
            if not is_patient:
                self._trainer.kill()
            return None
        self.verdict = generation.message
        return code

    def _keep(self) -> None:
        """As keeper, or in place of one that is silent, decide what comes next."""
        meeting, generation = self._meeting, self._meeting.generation
        if self._member.leaving and generation.keeper != self.token:
            return
        if generation.keeper != self.token and meeting.is_kept(self.now):
            return
        lost = generation.keeper if generation.keeper != self.token else ""
        self._watch.look(generation, self.now)
        keys = [(s, p) for s in range(self.limits.slices) for p in range(self.limits.per_slice)]
        reports = meeting.reports(keys, self.now, self._watch.ended_at, lost)
        has_ended = any(
            r.member.state == "ended" and r.member.generation == generation.number for r in reports.values()
        )
        if has_ended and self._watch.ended_at is None:
            self._watch.ended_at = self.now
            reports = meeting.reports(keys, self.now, self.now, lost)
        decided = next_generation.decide(generation, reports, self.limits, self._timing(generation))
        kept = decided.model_copy(update={"keeper": self.token, "beats": decided.beats + 1})
        if meeting.write_generation(kept, self.now):
            self._watch.look(kept, self.now)
            if kept.number != generation.number:
                _announce(kept, self.limits)

    def _timing(self, generation: Generation) -> Timing:
        watch, passed_s = self._watch, self.now - self._watch.since
        outages = generation.restarts.get("Network", 0)
        pause_s = min(LONGEST_PAUSE_S, OUTAGE_PAUSE_S * 2**outages)
        return Timing(
            is_quiet=watch.is_running and passed_s >= self.patience_s,
            has_waited=not watch.is_running and passed_s >= self.patience_s,
            may_retry=not outages or watch.ended_at is None or self.now - watch.ended_at >= pause_s,
        )

    def _look_at_trainer(self) -> None:
        if self._trainer is None or self._member.state != "running":
            return
        code = self._trainer.poll()
        if code is not None:
            self._update(state="ended", code=code if code >= 0 else SIGNALLED - code, message=self.message())

    def _is_ended(self) -> bool:
        """Return True if no trainer of ours runs; else kill it: its peers are gone, and so is what it could save."""
        if self._trainer is None or self._trainer.poll() is not None:
            return True
        self._trainer.kill()
        return self._trainer.poll() is not None

    def _terminate(self) -> None:
        if self._trainer is not None and not self._is_terminated:
            self._trainer.send_signal(signal.SIGTERM)  # it saves and ends
            self._is_terminated = True

    def _is_news(self) -> bool:
        return self._written is None or self._written.model_copy(update={"beats": self._member.beats}) != self._member

    def _report(self) -> None:
        if not self._is_news() and self.now - self._reported_at < self.limit_s / BEATS:
            return
        self._update(beats=self._member.beats + 1)
        self._meeting.write_member(self.key, self._member)
        self._written, self._reported_at = self._member, self.now

    def _update(self, **changes: object) -> None:
        self._member = self._member.model_copy(update=changes)


def _announce(generation: Generation, limits: Limits) -> None:
    there = ", ".join(map(str, generation.slices)) or "none"
    wait = "" if generation.slices else f"; waiting for {limits.minimum}"
    print(
        f"generation {generation.number}: {len(generation.slices)} of {limits.slices} slices ({there}){wait}",
        file=sys.stderr,
        flush=True,
    )
