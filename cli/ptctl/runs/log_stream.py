"""Logs of a job: what exists now, or a stream that goes on through restarts until the job ends.

One thread per rank reads its pod, one queue orders the lines as they arrive, and only the caller yields them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ptapi.text.terminal import PROGRESS_LINE
from ptctl.errors import CliError, MissingError
from ptctl.jobs.lookup import fetch
from ptctl.jobs.view import JobView, view
from ptctl.runs.ranks import Rank, ranks
from ptctl.ui.app import App, Target
from ptkube.errors import ApiError, NotFound
from ptkube.resources import PODS
from ptoperator.kube import labels

if TYPE_CHECKING:
    from ptkube.client import Kube

_POLL_S = 1.0
_END = None
Line = tuple[Rank, str] | None


class Entry(NamedTuple):
    """A line of the trainer's, with its rank where there are several; or a note about the job, such as a restart."""

    text: str
    is_note: bool = False


def print_logs(app: App, target: Target, name: str, only_rank: int | None, tail: int | None) -> None:
    """Print what the ranks have written so far, one rank after the other, newest attempt last."""
    kube = app.connect(target)
    _print(app, written(kube, view(fetch(kube, target, name)), only_rank, tail))


def follow_logs(app: App, target: Target, name: str, only_rank: int | None, tail: int | None) -> None:
    """Print the lines of all ranks as they are written, until the job has ended and everything is printed."""
    kube = app.connect(target)
    _print(app, followed(kube, view(fetch(kube, target, name)), only_rank, tail))


def written(kube: Kube, job: JobView, only_rank: int | None, tail: int | None) -> Iterator[Entry]:
    """Yield what the ranks have written so far, one rank after the other, newest attempt last."""
    current = _ranks(kube, job, only_rank)
    if not current:
        raise _no_logs_error(job, only_rank, _ranks(kube, job, None))
    layout = _Layout()
    layout.note_ranks(current)
    for rank in current:
        if not rank.has_started:
            yield Entry(f"rank {rank.number} has not started: {rank.waiting_for}", is_note=True)
            continue
        for line in kube.pod_logs(rank.pod, job.namespace, container=rank.container, tail=tail):
            yield from layout.entries(rank, line)


def followed(kube: Kube, job: JobView, only_rank: int | None, tail: int | None) -> Iterator[Entry]:
    """Yield the lines of all ranks as they are written, until the job has ended and everything is yielded."""
    lines: queue.Queue[Line] = queue.Queue()
    layout, streamed, running = _Layout(), set[tuple[str, str]](), 0
    last_message = ""
    closed = threading.Event()
    try:
        while True:
            current = _ranks(kube, job, only_rank)
            if job.is_terminal and not current and not streamed:
                raise _no_logs_error(job, only_rank, _ranks(kube, job, None))
            layout.note_ranks(current)
            for rank in current:
                if rank.has_started and rank.key not in streamed:
                    streamed.add(rank.key)
                    running += 1
                    _start_reader(kube, job.namespace, rank, lines, tail, closed)
            if not running and (message := _waiting_message(job, current)) not in ("", last_message):
                last_message = message
                yield Entry(message, is_note=True)
            for arrived in _arrivals(lines, _POLL_S):
                if arrived is _END:
                    running -= 1
                else:
                    yield from layout.entries(*arrived)
            try:
                job = view(fetch(kube, Target(job.namespace), job.name))
            except MissingError:
                yield Entry(f"job {job.name!r} was deleted", is_note=True)
                return
            if job.is_terminal and not running and not _has_unread_ranks(kube, job, only_rank, streamed):
                yield Entry(_final_line(job), is_note=True)
                return
    finally:
        closed.set()


def _print(app: App, entries: Iterator[Entry]) -> None:
    for entry in entries:
        (app.console.say if entry.is_note else app.console.data)(entry.text)


def _ranks(kube: Kube, job: JobView, only_rank: int | None) -> list[Rank]:
    pods = kube.list(PODS, job.namespace, labels=labels.selector(job.name)).items
    ours = [pod for pod in pods if pod["metadata"]["labels"].get(labels.JOB_UID, job.uid) == job.uid]
    return ranks(ours, only_rank)


def _has_unread_ranks(kube: Kube, job: JobView, only_rank: int | None, streamed: set[tuple[str, str]]) -> bool:
    return any(rank.has_started and rank.key not in streamed for rank in _ranks(kube, job, only_rank))


def _start_reader(
    kube: Kube, namespace: str, rank: Rank, lines: queue.Queue[Line], tail: int | None, closed: threading.Event
) -> None:
    def read() -> None:
        try:
            for line in kube.pod_logs(rank.pod, namespace, container=rank.container, follow=True, tail=tail):
                if closed.is_set():
                    return  # nobody reads on
                lines.put((rank, line))
        except NotFound:
            pass  # the pod was deleted during the read: the job restarts or ends
        except ApiError as error:
            lines.put((rank, f"(the log of pod {rank.pod} ended early: {error})"))
        finally:
            lines.put(_END)

    threading.Thread(target=read, name=f"logs of rank {rank.number}", daemon=True).start()


def _arrivals(lines: queue.Queue[Line], seconds: float) -> Iterator[Line]:
    """Yield what arrives within `seconds`."""
    deadline = time.monotonic() + seconds
    while (remaining := deadline - time.monotonic()) > 0:
        try:
            yield lines.get(timeout=remaining)
        except queue.Empty:
            return


class _Layout:
    """Lay out lines: with more than one rank each begins with its rank; a new attempt is announced."""

    def __init__(self) -> None:
        self._has_many = False
        self._attempt = 0

    def note_ranks(self, current: list[Rank]) -> None:
        """Learn whether there is more than one rank."""
        self._has_many = self._has_many or any(rank.number > 0 for rank in current)

    def entries(self, rank: Rank, line: str) -> Iterator[Entry]:
        if line.startswith(PROGRESS_LINE):
            return  # for the operator
        if rank.attempt != self._attempt:
            if self._attempt or rank.attempt > 1:
                yield Entry(f"--- attempt {rank.attempt}", is_note=True)
            self._attempt = rank.attempt
        yield Entry(f"[{rank.number}] {line}" if self._has_many else line)


def _waiting_message(job: JobView, current: list[Rank]) -> str:
    """Return why there is no output; empty once the job has ended."""
    if job.is_terminal:
        return ""
    reasons = sorted({rank.waiting_for for rank in current if not rank.has_started})
    return f"waiting for the trainer: job is {job.phase}" + (f" ({'; '.join(reasons)})" if reasons else "")


def _no_logs_error(job: JobView, only_rank: int | None, others: list[Rank]) -> CliError:
    """Return the error for a job without logs, with where to look instead. others: the ranks that have pods."""
    whose = f"job {job.name!r}" + (f", rank {only_rank}," if only_rank is not None else "")
    if others:
        there = ", ".join(str(number) for number in sorted({rank.number for rank in others})[:16])
        return MissingError(f"{whose} has no pod; ranks with pods: {there}")
    if job.is_terminal or job.phase == "Suspended":
        failure = f" ({job.failure})" if job.failure else ""
        return MissingError(
            f"{whose} has no pods any more: {job.phase}{failure}",
            f"look in the run directory {job.run_uri}: metrics.jsonl, samples/, termination.json",
        )
    return MissingError(f"{whose} has no pods yet: {job.phase}", "add -f to wait for them")


def _final_line(job: JobView) -> str:
    failure = f": {job.failure}" if job.failure else ""
    return f"job {job.name!r} {job.phase.lower()}{failure}"
