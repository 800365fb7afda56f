"""What a run does when: spans of a step's parts, recorded where they happen, for those who ask for them.

Off, `span` costs the call of a function, and nothing is kept. On, a span belongs to the step that the loop was at when
it began, also on other threads, and lies within the one that is open on its own thread. One recorder for a process, as
there is one log: parts that are measured know neither the job nor who asked. Spans that nobody takes make room for
newer ones.
"""

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

Attribute = str | int | float
MOST = 10_000
"""Spans that are kept until they are taken."""


class Span(NamedTuple):
    """One part of a step; times in nanoseconds since the epoch. parent: the number of the span around it."""

    number: int
    parent: int | None
    step: int
    name: str
    began_ns: int
    ended_ns: int
    attributes: dict[str, Attribute]


class _Recorder:
    def __init__(self) -> None:
        self.step = 0
        self.spans: deque[Span] = deque(maxlen=MOST)
        self.numbers = itertools.count()
        self.open = threading.local()

    def parents(self) -> list[int]:
        """Return the numbers of this thread's open spans, the innermost last."""
        if not hasattr(self.open, "numbers"):
            self.open.numbers = []
        numbers: list[int] = self.open.numbers
        return numbers


_recorder: _Recorder | None = None


def start() -> None:
    """Record from now on."""
    global _recorder
    _recorder = _Recorder()


def stop() -> None:
    """Record nothing more, and forget what was."""
    global _recorder
    _recorder = None


def at_step(step: int) -> None:
    """Note that the loop begins this step, counted from 1."""
    if _recorder is not None:
        _recorder.step = step


@contextmanager
def span(name: str) -> Iterator[dict[str, Attribute]]:
    """Record what happens within. Attributes may be added to what it yields; one that fails has `error` among them."""
    recorder, attributes = _recorder, dict[str, Attribute]()
    if recorder is None:
        yield attributes
        return
    open_spans, number, step = recorder.parents(), next(recorder.numbers), recorder.step
    parent, began_ns = open_spans[-1] if open_spans else None, time.time_ns()
    open_spans.append(number)
    try:
        yield attributes
    except BaseException as error:
        attributes["error"] = type(error).__name__
        raise
    finally:
        open_spans.pop()
        recorder.spans.append(Span(number, parent, step, name, began_ns, time.time_ns(), attributes))


def now_ns() -> int:
    """Return the time for `add`; 0 where nothing is recorded."""
    return 0 if _recorder is None else time.time_ns()


def add(name: str, step: int, began_ns: int) -> None:
    """Record what began then and ends now, on no thread in particular."""
    if _recorder is not None and began_ns:
        _recorder.spans.append(Span(next(_recorder.numbers), None, step, name, began_ns, time.time_ns(), {}))


def taken(step: int) -> list[Span]:
    """Return the spans of steps up to this one, in the order of their beginning, and forget them."""
    if _recorder is None:
        return []
    due = [_recorder.spans.popleft() for _ in range(len(_recorder.spans))]
    _recorder.spans.extend(one for one in due if one.step > step)
    return sorted((one for one in due if one.step <= step), key=lambda one: (one.began_ns, one.number))
