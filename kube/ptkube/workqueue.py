"""The one work queue: keys to reconcile, each once, never twice at a time, later if asked, with a backoff after errors.

Any number of events about a waiting key are one reconcile. Reconciles block, and run in the queue's own threads; every
method may be called from any thread.
"""

import heapq
import itertools
import logging
import random
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ptkube.backoff import pause_s
from ptkube.errors import ApiError, Conflict, NotFound, Unreachable

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

_PASSING = (Conflict, NotFound, Unreachable)  # somebody else was faster, or the API server is away: others say so


@dataclass
class _Entry:
    due: float | None = None
    has_event: bool = False
    is_running: bool = False
    failures: int = 0
    finished: float = float("-inf")


class WorkQueue(Generic[K]):
    """Calls reconcile(key, has_event), which returns after how many seconds to call again, or None.

    has_event: False if nothing but that time calls. settle_s: a reconcile follows the one before by at least this, so a
    burst of events is one reconcile. pauses_s: after the first failure, and the longest. on_done is told the seconds it
    took, and the error.
    """

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K, bool], float | None],
        *,
        workers: int = 1,
        settle_s: float = 0.0,
        pauses_s: tuple[float, float] = (0.05, 30.0),
        on_done: Callable[[float, Exception | None], None] = lambda seconds, error: None,
    ) -> None:
        self.name = name
        self._reconcile, self._on_done, self._settle_s, self._pauses_s = reconcile, on_done, settle_s, pauses_s
        self._condition = threading.Condition()
        self._heap: list[tuple[float, int, K]] = []
        self._entries: dict[K, _Entry] = {}
        self._order = itertools.count()
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{index}", daemon=True) for index in range(workers)
        ]

    def start(self) -> None:
        """Run in background threads."""
        for thread in self._threads:
            thread.start()

    def add(self, key: K, after_s: float = 0.0) -> None:
        """Add a key, due after some seconds; of two times for a key the earlier counts."""
        with self._condition:
            entry = self._entries.setdefault(key, _Entry())
            entry.has_event = True
            self._schedule(key, entry, max(time.monotonic() + after_s, entry.finished + self._settle_s))

    def close(self, wait_s: float = 0.0) -> None:
        """Start nothing more, and wait so long for running reconciles."""
        deadline = time.monotonic() + wait_s
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def __len__(self) -> int:
        return len(self._entries)

    def _schedule(self, key: K, entry: _Entry, due: float) -> None:
        if entry.due is not None and entry.due <= due:
            return
        entry.due = due
        if not entry.is_running:
            heapq.heappush(self._heap, (due, next(self._order), key))
            self._condition.notify()

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            key, has_event = taken
            began = time.monotonic()
            again_s, error = None, None
            try:
                again_s = self._reconcile(key, has_event)
            except Exception as raised:
                error = raised
            self._on_done(time.monotonic() - began, error)
            self._finish(key, again_s, error)

    def _take(self) -> tuple[K, bool] | None:
        """Wait for the next due key; return None once the queue is closed."""
        with self._condition:
            while not self._is_closed:
                if not self._heap:
                    self._condition.wait()
                    continue
                due, _, key = self._heap[0]
                entry = self._entries.get(key)
                if entry is None or entry.is_running or entry.due != due:
                    heapq.heappop(self._heap)  # superseded by an earlier time
                elif (left_s := due - time.monotonic()) > 0:
                    self._condition.wait(left_s)
                else:
                    heapq.heappop(self._heap)
                    has_event = entry.has_event
                    entry.due, entry.has_event, entry.is_running = None, False, True
                    return key, has_event
            return None

    def _finish(self, key: K, again_s: float | None, error: Exception | None) -> None:
        with self._condition:
            entry = self._entries[key]
            next_due, entry.due, entry.is_running, entry.finished = entry.due, None, False, time.monotonic()
            if error is not None:
                entry.has_event, entry.failures = True, entry.failures + 1
                left_s = pause_s(entry.failures, *self._pauses_s) * random.uniform(0.8, 1.2)
                self._schedule(key, entry, entry.finished + left_s)
                self._log(key, left_s, error)
                return
            entry.failures = 0
            if next_due is not None:
                self._schedule(key, entry, max(next_due, entry.finished + self._settle_s))
            if again_s is not None:
                self._schedule(key, entry, entry.finished + again_s)
            if entry.due is None:
                del self._entries[key]

    def _log(self, key: K, left_s: float, error: Exception) -> None:
        name = "/".join(map(str, key)) if isinstance(key, tuple) else key
        if isinstance(error, ApiError):
            level = logging.DEBUG if isinstance(error, _PASSING) else logging.WARNING
            log.log(level, "%s: %s: again in %.2f s: %s", self.name, name, left_s, error)
        else:
            log.error("%s: %s failed, again in %.2f s", self.name, name, left_s, exc_info=error)
