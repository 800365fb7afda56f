"""The work queue: coalescing, order, repetition, timers."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from ptkube.errors import Conflict, Unreachable
from ptoperator.controller import workqueue
from ptoperator.controller.workqueue import Queue
from ptoperator.observe.cache import Key

KEY = ("team-a", "llama")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workqueue, "SETTLE_S", 0.01)
    monkeypatch.setattr(workqueue, "_BACKOFF_S", (0.01, 0.02))
    monkeypatch.setattr(workqueue, "_CONFLICT_S", 0.01)


class Looks:
    """Records looks; answers and errors are scripted."""

    def __init__(self, *answers: float | Exception | None) -> None:
        self.seen: list[tuple[Key, bool]] = []
        self._answers = list(answers)
        self.at_once = 0
        self.most_at_once = 0
        self._lock = threading.Lock()
        self.pause = threading.Event()
        self.pause.set()

    def __call__(self, key: Key, is_news: bool) -> float | None:
        with self._lock:
            self.seen.append((key, is_news))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            answer = self._answers.pop(0) if self._answers else None
        self.pause.wait(60)
        with self._lock:
            self.at_once -= 1
        if isinstance(answer, Exception):
            raise answer
        return answer


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(6000):
        if is_so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to be")


async def test_many_events_while_a_look_waits_are_one_look() -> None:
    looks = Looks()
    queue = Queue(looks, workers=2)
    for _ in range(50):
        queue.add(KEY)
    await until(lambda: len(queue) == 0)
    assert looks.seen == [(KEY, True)]


async def test_an_event_during_a_look_is_one_more_look_and_never_two_at_once() -> None:
    looks = Looks()
    looks.pause.clear()
    queue = Queue(looks, workers=4)
    queue.add(KEY)
    await until(lambda: len(looks.seen) == 1)
    for _ in range(10):
        queue.add(KEY)
    looks.pause.set()
    await until(lambda: len(queue) == 0)
    assert looks.seen == [(KEY, True)] * 2
    assert looks.most_at_once == 1


async def test_a_timer_is_no_news() -> None:
    looks = Looks(0.02, None)
    queue = Queue(looks, workers=1)
    queue.add(KEY)
    await until(lambda: len(queue) == 0)
    assert looks.seen == [(KEY, True), (KEY, False)]


async def test_an_event_comes_before_a_timer() -> None:
    looks = Looks(60.0, None)
    queue = Queue(looks, workers=1)
    queue.add(KEY)
    await until(lambda: len(looks.seen) == 1)
    await asyncio.sleep(0.02)
    queue.add(KEY)
    await until(lambda: len(queue) == 0)
    assert looks.seen == [(KEY, True), (KEY, True)]


@pytest.mark.parametrize("error", [Conflict(409, "Conflict", ""), Unreachable(0, "", "gone"), ValueError("a bug")])
async def test_a_look_that_fails_is_repeated_as_news(error: Exception) -> None:
    looks = Looks(error, error, error, None)
    told: list[Exception | None] = []
    queue = Queue(looks, workers=1, on_reconcile=lambda seconds, error: told.append(error))
    queue.add(KEY)
    await until(lambda: len(queue) == 0)
    assert looks.seen == [(KEY, True)] * 4
    assert told == [error, error, error, None]


async def test_no_more_looks_at_once_than_workers() -> None:
    looks = Looks()
    queue = Queue(looks, workers=3)
    for number in range(20):
        queue.add(("team-a", f"job-{number}"))
    await until(lambda: len(queue) == 0)
    assert len(looks.seen) == 20
    assert looks.most_at_once <= 3


async def test_a_closed_queue_starts_nothing() -> None:
    looks = Looks()
    queue = Queue(looks, workers=1)
    await queue.close()
    queue.add(KEY)
    await asyncio.sleep(0.05)
    assert looks.seen == []
