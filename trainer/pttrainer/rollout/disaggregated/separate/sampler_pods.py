"""The samplers of a job as one engine: who draws what, who is away, and what happens to the share of one that is lost.

Each sampler has a thread here. A call's prompts are split into shares (`prefix_routing`), and each thread takes its own
sampler's. The share of a sampler that is away is taken by one that has nothing else to do, as the same call, so its
samples are the same. A sampler that returns gets the weights first. If none can be reached for `lost_s`, the run ends
with `ServiceLost`, and resumes from its checkpoint.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ptapi import run_directory
from pttrainer.errors import ServiceLost
from pttrainer.models import Params
from pttrainer.rollout.disaggregated.in_flight.remote_calls import Continuation
from pttrainer.rollout.disaggregated.separate.client import Conflict, SamplerAway, SamplerFailed
from pttrainer.rollout.disaggregated.separate.messages import Request

LOOK_S = 0.5
"""Seconds between tries to reach a sampler that is away."""
LOST_S = 1800.0
"""Longest time without any sampler: a pod that is evicted waits for a node, and pulls its image there."""
MOST_FAILURES = 3
"""Engine errors in one call, wherever they happen, after which the run ends: the samples are the cause."""
AWAY, DRAWN_AGAIN = f"{run_directory.SAMPLERS}away", f"{run_directory.SAMPLERS}drawn_again"


Shares = Mapping[int, Request] | Mapping[int, Continuation]
"""Calls by home, all of one kind; what they draw is `Completions` or `Continued`."""


class Version(Protocol):
    """Weights that samplers can be given."""

    @property
    def name(self) -> str:
        """Return a name that is never used twice."""
        ...


class Sampler(Protocol):
    """A sampler as the trainer reaches it; its methods raise SamplerAway, SamplerFailed or Conflict (`client`)."""

    name: str

    def refresh(self) -> None:
        """Ask what it holds."""
        ...

    def generate(self, request: Any, progress: Callable[[], None]) -> Any:
        """Return what the call draws; `progress` is called while it samples."""
        ...

    def forget(self) -> None:
        """Let it drop kept prompts."""
        ...

    def lost(self) -> None:
        """Note that nothing is known of what it holds."""
        ...

    def close(self) -> None:
        """Cancel what is in progress; every later call raises SamplerAway."""
        ...


class Delivery(Protocol):
    """Turns weights into versions."""

    def deliver(self, params: Params) -> Version:
        """Make these weights the newest version."""
        ...

    def facts(self) -> dict[str, float]:
        """Return what was sent since the last call."""
        ...

    def close(self) -> None:
        """Remove what is on disk."""
        ...


class Sender(Delivery, Protocol):
    """Delivers versions to the samplers of its own kind."""

    def ensure(self, client: Any, version: Any) -> None:
        """Give a sampler a version, unless it has it. Raises SamplerAway or TransferError."""
        ...


@dataclass
class _Call:
    """A call of the engine: shares by home, those that nobody has yet, and what came back."""

    version: Version
    shares: Shares
    waiting: set[int]
    results: dict[int, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    error: BaseException | None = None

    @property
    def is_over(self) -> bool:
        """Return True if nobody needs to do anything for it."""
        return self.error is not None or len(self.results) == len(self.shares)


class SamplerPods:
    """Threads that keep samplers busy. note: log a line for people; both limits in seconds."""

    def __init__(
        self,
        clients: Sequence[Sampler],
        sender: Sender,
        note: Callable[[str], None],
        lost_s: float = LOST_S,
        look_s: float = LOOK_S,
        most_failures: int = MOST_FAILURES,
    ) -> None:
        self._clients, self._sender, self._note = clients, sender, note
        self._lost_s, self._look_s, self._most_failures = lost_s, look_s, most_failures
        self._changed = threading.Condition()
        self._call: _Call | None = None
        self._reasons = dict.fromkeys(range(len(clients)), "not reached yet")
        self._was_up: set[int] = set()
        self._lines: list[str] = []
        self._progress = self._drawn_again = 0
        self._last_reached = time.monotonic()
        self._is_closed = False
        self._error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._keep_busy, args=(home,), name=f"sampler {home}", daemon=True)
            for home in range(len(clients))
        ]
        for thread in self._threads:
            thread.start()

    def draw(self, version: Version, shares: Shares, alive: Callable[[], None]) -> dict[int, Any]:
        """Return what each share draws. Raises ServiceLost, ConfigError or TransferError."""
        call = _Call(version, shares, set(shares))
        with self._changed:
            self._call, call.error = call, self._error
            self._last_reached = time.monotonic()
            self._changed.notify_all()
        progress = -1
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: call.is_over or self._lines, 1.0)
                    lines, self._lines = self._lines, []
                    is_moving, progress = progress != self._progress, self._progress
                for line in lines:
                    self._note(line)
                if call.error is not None:
                    raise call.error
                if call.is_over:
                    return call.results
                if is_moving or lines:
                    alive()
                self._check_any(alive)
        finally:
            with self._changed:
                self._call = None

    def forget(self) -> None:
        """Let all samplers that are up drop kept prompts."""
        for home, client in enumerate(self._clients):
            if home not in self._reasons:
                try:
                    client.forget()
                except SamplerAway:
                    pass  # its thread will notice, and what it kept is lost anyway

    def facts(self) -> dict[str, float]:
        """Return how many samplers are away, and how many shares were drawn again since the last call."""
        with self._changed:
            drawn_again, self._drawn_again = self._drawn_again, 0
            return {AWAY: float(len(self._reasons)), DRAWN_AGAIN: float(drawn_again)}

    def close(self) -> None:
        """End the threads, and what they wait for."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for client in self._clients:
            client.close()
        for thread in self._threads:
            thread.join(timeout=10)

    def _check_any(self, alive: Callable[[], None]) -> None:
        """Raise ServiceLost if no sampler could be reached for too long; a shorter wait is no hang of the trainer."""
        with self._changed:
            if len(self._reasons) < len(self._clients):
                self._last_reached = time.monotonic()
                return
            waited_s = time.monotonic() - self._last_reached
            reasons = "; ".join(f"{self._clients[home].name}: {text}" for home, text in self._reasons.items())
        alive()
        if waited_s > self._lost_s:
            raise ServiceLost(
                f"spec.rollout.separate: no sampler could be reached for {waited_s:.0f} s: {reasons}; hint: "
                "look at the samplers' pods; the run resumes from its checkpoint when it is started again"
            )

    def _keep_busy(self, home: int) -> None:
        """Run one sampler: reach it, give it shares, again and again."""
        try:
            while not self._is_closed:
                if not self._reach(home):
                    continue
                taken = self._take(home)
                if taken is not None:
                    self._serve(home, *taken)
        except BaseException as error:  # on the caller's thread, where there is one
            with self._changed:
                self._error = self._error or error
                if self._call is not None:
                    self._call.error = self._error
                self._reasons[home] = str(error)
                self._changed.notify_all()

    def _reach(self, home: int) -> bool:
        """Return True if the sampler is up; look for it if it was not, and wait a little in vain."""
        if home not in self._reasons:
            return True
        try:
            self._clients[home].refresh()
        except SamplerAway as away:
            with self._changed:
                self._reasons[home] = str(away)
                self._changed.wait(self._look_s)
            return False
        with self._changed:
            del self._reasons[home]
            if home in self._was_up:
                self._lines.append(f"sampler {home} ({self._clients[home].name}) is back")
            self._was_up.add(home)
            self._changed.notify_all()
        return True

    def _take(self, home: int) -> tuple[_Call, int] | None:
        """Wait for a share: this sampler's own, or one whose sampler is away."""

        def candidate() -> int | None:
            call = self._call
            if call is None or call.is_over:
                return None
            if home in call.waiting:
                return home
            return next((other for other in sorted(call.waiting) if other in self._reasons), None)

        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or candidate() is not None, 1.0)
            share = candidate()
            if self._is_closed or share is None or self._call is None:
                return None
            self._call.waiting.remove(share)
            return self._call, share

    def _serve(self, home: int, call: _Call, share: int) -> None:
        client = self._clients[home]
        try:
            result = self._draw(client, call, share)
        except (SamplerAway, SamplerFailed) as error:
            client.lost()
            with self._changed:
                call.waiting.add(share)
                self._reasons[home] = str(error)
                self._drawn_again += 1
                count = len(call.shares[share].prompts)
                self._lines.append(
                    f"sampler {home} ({client.name}) is away: {error}; its {count} prompts are drawn again"
                )
                if isinstance(error, SamplerFailed):
                    call.failures.append(str(error))
                    if len(call.failures) >= self._most_failures:
                        call.error = ServiceLost(f"samplers failed {len(call.failures)} times in a step: {error}")
                self._changed.notify_all()
            return
        with self._changed:
            call.results[share] = result
            self._changed.notify_all()

    def _draw(self, client: Sampler, call: _Call, share: int) -> Any:
        """Give the sampler the weights if it lacks them, and draw; twice if it lost them in between."""
        for _ in range(2):
            self._sender.ensure(client, call.version)
            try:
                return client.generate(call.shares[share], self._moved)
            except Conflict:
                client.lost()
        raise SamplerAway("it lost its weights twice")

    def _moved(self) -> None:
        with self._changed:
            self._progress += 1
