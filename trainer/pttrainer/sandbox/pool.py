"""Child processes that answer requests with a wall-clock limit each.

Every child answers one request at a time. One that times out is killed, with everything it started, and replaced; so is
one that dies. The pool lives as long as the run: no process is started per request, and none is forked from this one
(which has jax's threads). The child's source defines its requests (`handlers`).

However bad the user's code is, a call ends: a child that fails to load again is not retried within the call, and after
many timeouts or deaths in a row the remaining requests are not started.

A pool must be used from the thread that created it: on Linux, children die with that thread.
"""

import os
import selectors
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pttrainer.errors import UserCodeError
from pttrainer.sandbox.captured_output import OutputLimiter
from pttrainer.sandbox.process import ChildDied, Process

Alive = Callable[[], None]
"""Called repeatedly while waiting for children: each of them has a limit, so the wait is not a hang."""
WAKE_S = 1.0
"""Maximum time between two calls of it."""
LOAD_TIMEOUT_S = 120.0
"""Timeout of the child's start and of importing the user's file, which may import much."""
MAX_CHILDREN = 8
STDERR = 2
MAX_STOPS_IN_A_ROW = 8
"""Per child: this many requests in a row without an answer end a call."""


class Request(NamedTuple):
    """message: JSON for the child. home: index of the child that must answer; None for any."""

    message: Any
    limit_s: float
    home: int | None = None


class Reply(NamedTuple):
    """A value, or why there is none. stopped: it timed out, or the child died. seconds: time it took.

    is_lost: its sandbox, or a server that the child asked, did not answer, so that nobody knows the value.
    """

    value: Any
    error: str = ""
    stopped: bool = False
    seconds: float = 0.0
    is_lost: bool = False


def default_children() -> int:
    """Return the number of cores, up to `MAX_CHILDREN`."""
    return min(os.cpu_count() or 1, MAX_CHILDREN)


class Pool:
    """Answers requests. field: the job's field that it serves, for messages; load_s: time to load the source."""

    def __init__(
        self, field: str, source: Mapping[str, Any], children: int | None = None, load_s: float = LOAD_TIMEOUT_S
    ) -> None:
        self._children = [_Child(source, load_s) for _ in range(children or default_children())]
        try:
            with selectors.DefaultSelector() as selector:
                while any(child.is_loading for child in self._children):
                    _attend(selector, [child for child in self._children if child.is_loading])
        except BaseException:
            self.close()
            raise
        broken = next((child.broken for child in self._children if child.broken), "")
        if broken:
            self.close()
            raise UserCodeError(f"{field}: {broken}")
        self.loaded = self._children[0].details
        """What the child said about its source."""

    def __len__(self) -> int:
        return len(self._children)

    def call(self, requests: Sequence[Request], alive: Alive) -> list[Reply]:
        """Return a reply per request, in order; requests of one home are answered in order."""
        replies: dict[int, Reply] = {}
        waiting: dict[int | None, deque[int]] = {None: deque()}
        for index, request in enumerate(requests):
            waiting.setdefault(request.home, deque()).append(index)
        for child in self._children:
            if child.broken:
                child.start()
        stops = 0
        with selectors.DefaultSelector() as selector:
            while len(replies) < len(requests):
                if stops >= MAX_STOPS_IN_A_ROW * len(self._children):
                    _fail_unstarted(replies, waiting, f"not asked: {stops} calls in a row had no answer")
                for place, child in enumerate(self._children):
                    queue = waiting.get(place) or waiting[None]
                    if queue and child.is_idle:
                        child.ask(queue[0], requests[queue.popleft()])
                    elif child.broken:
                        _fail_unstarted(replies, {place: waiting.get(place, deque())}, child.broken)
                if all(child.broken for child in self._children):
                    _fail_unstarted(replies, waiting, self._children[0].broken)
                alive()
                for index, reply in _attend(selector, self._children):
                    replies[index] = reply
                    stops = stops + 1 if reply.stopped else 0
        return [replies[index] for index in range(len(requests))]

    def close(self) -> None:
        """End all children."""
        for child in self._children:
            child.end()


def _fail_unstarted(replies: dict[int, Reply], waiting: Mapping[int | None, deque[int]], why: str) -> None:
    """Fail the requests that no child has started."""
    for queue in waiting.values():
        while queue:
            replies[queue.popleft()] = Reply(None, why, stopped=True)


class _Child:
    """A process that is loading its source, idle, busy with a request, or broken: its source failed to load."""

    def __init__(self, source: Mapping[str, Any], load_s: float) -> None:
        self._source, self._load_s = dict(source), load_s
        self._gate = OutputLimiter()
        self.details: dict[str, Any] = {}
        self.start()

    def start(self) -> None:
        """Start a new process, which begins to load its source."""
        self.process = Process()
        self.broken = ""
        self.is_loading = True
        self._request: int | None = None
        self._begin(self._source, self._load_s)

    @property
    def is_idle(self) -> bool:
        return not (self.is_loading or self.broken or self._request is not None)

    @property
    def is_waited_for(self) -> bool:
        return self.is_loading or self._request is not None

    def ask(self, index: int, request: Request) -> None:
        """Begin a request, identified by its index."""
        self._request = index
        self._begin(request.message, request.limit_s)

    def _begin(self, message: Any, limit_s: float) -> None:
        self._began, self._limit_s, self._died = time.monotonic(), limit_s, ""
        try:
            self.process.ask(message)
        except ChildDied as dead:
            self._died = str(dead)

    @property
    def deadline(self) -> float:
        """Return the latest time at which this child needs attention."""
        return self._began + (0.0 if self._died else self._limit_s)

    def attend(self, *, is_ready: bool) -> tuple[int, Reply] | None:
        """Make progress without blocking; return the reply to its request once there is one."""
        answer = None
        try:
            if is_ready and not self._died:
                self._show(self.process.printed())
                self.process.send()
                answer = self.process.receive()
        except ChildDied as dead:
            self._died = str(dead)
        seconds = time.monotonic() - self._began
        if answer is None and not self._died and seconds < self._limit_s:
            return None
        if self.is_loading:
            self._loaded(answer)
            return None
        index, self._request = self._request, None
        assert index is not None
        if answer is not None:
            return index, Reply(
                answer.get("value"), answer.get("error", ""), seconds=seconds, is_lost=answer.get("lost", False)
            )
        why = self._died or f"no answer within {round(self._limit_s, 2):g} s"
        self.end()
        self.start()
        return index, Reply(None, why, stopped=True, seconds=seconds)

    def _show(self, printed: bytes) -> None:
        if printed and (passed := self._gate.allow(printed, time.monotonic())):
            os.write(STDERR, passed)

    def end(self) -> None:
        """End this process and show its remaining output."""
        self._show(self.process.printed())
        self.process.kill()

    def _loaded(self, answer: dict[str, Any] | None) -> None:
        self.is_loading = False
        if answer is not None and "error" not in answer:
            self.details = answer
            return
        late = f"not imported within {self._limit_s:g} s; hint: move slow imports into the function"
        why = f"{self._died} while the file was loaded" if self._died else late
        self.broken = answer["error"] if answer else f"{self._source['path']}: {why}" if "path" in self._source else why
        self.end()


def _attend(selector: selectors.BaseSelector, children: Sequence[_Child]) -> list[tuple[int, Reply]]:
    """Wait briefly until a child is ready or out of time; return the replies."""
    waited = [child for child in children if child.is_waited_for]
    for child in waited:
        for file, event in child.process.waits_for():
            selector.register(file, event, child)
    soonest = min((child.deadline for child in waited), default=0.0)
    patience_s = min(max(0.0, soonest - time.monotonic()), WAKE_S)
    ready = {key.data for key, _ in selector.select(patience_s)} if waited else set()
    for key in list(selector.get_map().values()):
        selector.unregister(key.fileobj)
    now = time.monotonic()
    due = [child for child in waited if child in ready or child.deadline <= now]
    return [reply for child in due if (reply := child.attend(is_ready=child in ready)) is not None]
