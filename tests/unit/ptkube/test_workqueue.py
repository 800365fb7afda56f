"""The work queue: coalescing, order, repetition, timers, and several threads that never take one key at once."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ptkube.errors import Conflict, Unreachable
from ptkube.workqueue import WorkQueue

KEY = "team-a/llama"


class Reconciles:
    """Records reconciles; answers and errors are scripted."""

    def __init__(self, *answers: float | Exception | None) -> None:
        self.calls: list[tuple[str, bool]] = []
        self._answers = list(answers)
        self.at_once = 0
        self.most_at_once = 0
        self._lock = threading.Lock()
        self.pause = threading.Event()
        self.pause.set()

    def __call__(self, key: str, has_event: bool) -> float | None:
        with self._lock:
            self.calls.append((key, has_event))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            answer = self._answers.pop(0) if self._answers else None
        self.pause.wait(60)
        with self._lock:
            self.at_once -= 1
        if isinstance(answer, Exception):
            raise answer
        return answer


@contextmanager
def running(reconciles: Reconciles, workers: int = 1, **options: Any) -> Iterator[WorkQueue[str]]:
    queue = WorkQueue("test", reconciles, workers=workers, settle_s=0.01, pauses_s=(0.01, 0.02), **options)
    queue.start()
    yield queue
    queue.close(60)


def until(is_so: Callable[[], bool]) -> None:
    for _ in range(6000):
        if is_so():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come to be")


def test_many_events_while_a_key_waits_are_one_reconcile() -> None:
    reconciles = Reconciles()
    queue = WorkQueue("test", reconciles, workers=2)
    for _ in range(50):
        queue.add(KEY)
    queue.start()
    until(lambda: len(queue) == 0)
    assert reconciles.calls == [(KEY, True)]
    queue.close(60)


def test_events_during_a_reconcile_are_one_more_and_never_two_at_once() -> None:
    reconciles = Reconciles()
    reconciles.pause.clear()
    with running(reconciles, workers=4) as queue:
        queue.add(KEY)
        until(lambda: len(reconciles.calls) == 1)
        for _ in range(10):
            queue.add(KEY)
        reconciles.pause.set()
        until(lambda: len(queue) == 0)
    assert reconciles.calls == [(KEY, True)] * 2
    assert reconciles.most_at_once == 1


def test_a_timer_is_no_news() -> None:
    reconciles = Reconciles(0.02, None)
    with running(reconciles) as queue:
        queue.add(KEY)
        until(lambda: len(queue) == 0)
    assert reconciles.calls == [(KEY, True), (KEY, False)]


def test_an_event_comes_before_a_timer_and_a_later_time_delays_nothing() -> None:
    reconciles = Reconciles(60.0, None)
    with running(reconciles) as queue:
        queue.add(KEY)
        queue.add(KEY, after_s=60.0)
        until(lambda: len(reconciles.calls) == 1)
        queue.add(KEY, after_s=60.0)
        queue.add(KEY)
        until(lambda: len(queue) == 0)
    assert reconciles.calls == [(KEY, True), (KEY, True)]


def test_keys_come_in_the_order_of_their_times() -> None:
    reconciles = Reconciles()
    queue = WorkQueue("test", reconciles)
    queue.add("late", after_s=60.0)
    queue.add("second", after_s=0.02)
    queue.add("first")
    queue.add("late", after_s=0.04)
    queue.start()
    until(lambda: len(queue) == 0)
    assert [key for key, _ in reconciles.calls] == ["first", "second", "late"]
    queue.close(60)


@pytest.mark.parametrize("error", [Conflict(409, "Conflict", ""), Unreachable(0, "", "gone"), ValueError("a bug")])
def test_a_reconcile_that_fails_is_repeated_as_after_an_event(error: Exception) -> None:
    reconciles = Reconciles(error, error, error, None)
    outcomes: list[Exception | None] = []
    with running(reconciles, on_done=lambda seconds, error: outcomes.append(error)) as queue:
        queue.add(KEY)
        until(lambda: len(queue) == 0)
    assert reconciles.calls == [(KEY, True)] * 4
    assert outcomes == [error, error, error, None]


def test_no_more_reconciles_at_once_than_workers() -> None:
    reconciles = Reconciles()
    with running(reconciles, workers=3) as queue:
        for number in range(20):
            queue.add(f"team-a/job-{number}")
        until(lambda: len(queue) == 0)
    assert len(reconciles.calls) == 20
    assert reconciles.most_at_once <= 3


def test_a_closed_queue_starts_nothing_and_waits_for_what_runs() -> None:
    reconciles = Reconciles()
    reconciles.pause.clear()
    with running(reconciles) as queue:
        queue.add(KEY)
        until(lambda: len(reconciles.calls) == 1)
        queue.close(0.01)
        queue.add("another")
        assert reconciles.at_once == 1
        reconciles.pause.set()
        queue.close(60)
        assert reconciles.at_once == 0
    assert reconciles.calls == [(KEY, True)]
