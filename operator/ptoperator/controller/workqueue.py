"""The work queue: which jobs to reconcile, when, and never one job twice at once.

Any number of events about a waiting job are one reconcile. A failed reconcile is retried after a growing, jittered
pause. The queue runs in kopf's event loop; reconciles block and run in threads.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ptkube.errors import ApiError, Conflict, Unreachable
from ptoperator.observe.cache import Key

logger = logging.getLogger(__name__)

# A reconcile follows the one before by at least this: a burst of pod events is one reconcile.
SETTLE_S = 0.1
_BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_CONFLICT_S = 0.2


@dataclass
class _Entry:
    is_news: bool = False
    is_running: bool = False
    failures: int = 0
    finished: float = 0.0
    timer: asyncio.TimerHandle | None = None


@dataclass
class Queue:
    """Calls reconcile(key, is_news) in a thread; it returns the seconds until the next call, or None."""

    reconcile: Callable[[Key, bool], float | None]
    workers: int
    on_reconcile: Callable[[float, Exception | None], None] = lambda seconds, error: None
    _entries: dict[Key, _Entry] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _slots: asyncio.Semaphore | None = None
    _is_closed: bool = False

    def add(self, key: Key) -> None:
        """Queue a job after an event. Call it in the event loop."""
        entry = self._entries.setdefault(key, _Entry())
        entry.is_news = True
        if not entry.is_running:
            since = time.monotonic() - entry.finished
            self._schedule(key, entry, max(0.0, SETTLE_S - since))

    async def close(self) -> None:
        """Start nothing more and wait for running reconciles."""
        self._is_closed = True
        for entry in self._entries.values():
            if entry.timer:
                entry.timer.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=10.0)

    def __len__(self) -> int:
        return len(self._entries)

    def _schedule(self, key: Key, entry: _Entry, after_s: float) -> None:
        """Schedule at the earlier of this time and the one already set."""
        loop = asyncio.get_running_loop()
        when = loop.time() + after_s
        if self._is_closed or (entry.timer and entry.timer.when() <= when):
            return
        if entry.timer:
            entry.timer.cancel()
        entry.timer = loop.call_at(when, self._start, key, entry)

    def _start(self, key: Key, entry: _Entry) -> None:
        entry.timer = None
        if entry.is_running or self._is_closed:
            return
        entry.is_running = True
        task = asyncio.get_running_loop().create_task(self._run(key, entry))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, key: Key, entry: _Entry) -> None:
        if self._slots is None:
            self._slots = asyncio.Semaphore(self.workers)
        async with self._slots:
            is_news, entry.is_news = entry.is_news, False
            again, error = await self._call(key, is_news)
        entry.is_running, entry.finished = False, time.monotonic()
        if error is not None:
            entry.is_news, entry.failures = True, entry.failures + 1
            self._schedule(key, entry, _pause_s(error, entry.failures))
        else:
            entry.failures = 0
            if entry.is_news:
                self._schedule(key, entry, SETTLE_S)
            elif again is not None:
                self._schedule(key, entry, again)
            else:
                self._entries.pop(key, None)

    async def _call(self, key: Key, is_news: bool) -> tuple[float | None, Exception | None]:
        began = time.monotonic()
        error: Exception | None = None
        again: float | None = None
        try:
            again = await asyncio.to_thread(self.reconcile, key, is_news)
        except Conflict as conflict:
            error = conflict  # somebody else was faster; reconcile again
        except ApiError as refused:
            error = refused
            level = logging.DEBUG if isinstance(refused, Unreachable) else logging.WARNING
            logger.log(level, "%s/%s: %s", *key, refused)
        except Exception as bug:
            error = bug
            logger.exception("%s/%s: reconcile failed", *key)
        self.on_reconcile(time.monotonic() - began, error)
        return again, error


def _pause_s(error: Exception, failures: int) -> float:
    if isinstance(error, Conflict) and failures <= len(_BACKOFF_S):
        return _CONFLICT_S * failures
    pause = _BACKOFF_S[min(failures, len(_BACKOFF_S)) - 1]
    return pause * random.uniform(0.8, 1.2)
