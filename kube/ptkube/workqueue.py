"""A queue of keys to reconcile: each key once, later if asked, with growing pauses after errors.

One consumer per queue, so a key is never worked on twice at a time. The consumer's loop is `Worker`.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from ptkube.client import ApiError, Conflict, NotFound

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 30.0


class WorkQueue(Generic[K]):
    """Thread-safe. `get` blocks; a key added twice before it is taken comes once, at the earlier time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._condition = threading.Condition()
        self._heap: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        self._order = itertools.count()
        self._closed = False

    def add(self, key: K, after_s: float = 0.0) -> None:
        """Add a key, due after some seconds; of two times for a key the earlier counts."""
        due = self._clock() + after_s
        with self._condition:
            if key in self._due and self._due[key] <= due:
                return
            self._due[key] = due
            heapq.heappush(self._heap, (due, next(self._order), key))
            self._condition.notify()

    def get(self) -> K | None:
        """Wait for the next due key; return None once the queue is closed."""
        with self._condition:
            while not self._closed:
                if not self._heap:
                    self._condition.wait()
                    continue
                due, _, key = self._heap[0]
                if self._due.get(key) != due:
                    heapq.heappop(self._heap)  # superseded by an earlier time
                    continue
                pause_s = due - self._clock()
                if pause_s > 0:
                    self._condition.wait(pause_s)
                    continue
                heapq.heappop(self._heap)
                del self._due[key]
                return key
            return None

    def close(self) -> None:
        """Release everybody who waits in `get`."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()


class Worker(Generic[K]):
    """Calls `reconcile(key)` for every key; a number it returns is when, in seconds, to call again."""

    def __init__(self, name: str, reconcile: Callable[[K], float | None]) -> None:
        self.name = name
        self.queue: WorkQueue[K] = WorkQueue()
        self._reconcile = reconcile
        self._failures: dict[K, int] = {}

    def start(self) -> threading.Thread:
        """Run in a background thread."""
        thread = threading.Thread(target=self.run, name=self.name, daemon=True)
        thread.start()
        return thread

    def run(self) -> None:
        """Reconcile keys until the queue is closed."""
        while (key := self.queue.get()) is not None:
            try:
                again_s = self._reconcile(key)
            except Exception as error:
                self._retry_later(key, error)
                continue
            self._failures.pop(key, None)
            if again_s is not None:
                self.queue.add(key, again_s)

    def _retry_later(self, key: K, error: Exception) -> None:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        pause_s = min(_FIRST_PAUSE_S * 2**failures, _LONGEST_PAUSE_S)
        if isinstance(error, Conflict | NotFound):
            log.debug("%s: %s changed meanwhile, again in %.2f s: %s", self.name, key, pause_s, error)
        elif isinstance(error, ApiError):
            log.warning("%s: %s failed, again in %.2f s: %s", self.name, key, pause_s, error)
        else:
            log.exception("%s: %s failed, again in %.2f s", self.name, key, pause_s)
        self.queue.add(key, pause_s)
