"""The queue and its worker: each key once, in time, and again after errors."""

import threading

from ptkube.workqueue import Worker, WorkQueue


def test_a_key_added_twice_comes_once_and_at_the_earlier_time() -> None:
    now = [0.0]
    queue: WorkQueue[str] = WorkQueue(clock=lambda: now[0])
    queue.add("late", after_s=5)
    queue.add("a")
    queue.add("a")
    queue.add("late", after_s=1)
    assert queue.get() == "a"
    now[0] = 1.0
    assert queue.get() == "late"
    queue.close()
    assert queue.get() is None


def test_an_added_key_is_not_delayed_by_a_later_date() -> None:
    queue: WorkQueue[str] = WorkQueue(clock=lambda: 0.0)
    queue.add("a")
    queue.add("a", after_s=100)
    assert queue.get() == "a"


def test_a_failing_key_is_tried_again_and_a_returned_time_is_kept() -> None:
    seen: list[str] = []
    done = threading.Event()

    def reconcile(key: str) -> float | None:
        seen.append(key)
        if len(seen) == 1:
            raise RuntimeError("boom")
        if len(seen) == 2:
            return 0.01
        done.set()
        return None

    worker: Worker[str] = Worker("test", reconcile)
    worker.start()
    worker.queue.add("k")
    assert done.wait(5)
    worker.queue.close()
    assert seen == ["k", "k", "k"]
