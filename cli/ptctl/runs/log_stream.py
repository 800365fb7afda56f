"""Logs of a job: what exists now, or a stream that goes on through restarts until the job ends.

One thread per rank reads its pod, one queue orders the lines as they arrive, and only the main thread prints.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING

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
Line = tuple[Rank, str | None]


def print_logs(app: App, target: Target, name: str, only_rank: int | None, tail: int | None) -> None:
    """Print what the ranks have written so far, one rank after the other, newest attempt last."""
    kube = app.connect(target)
    job = view(fetch(kube, target, name))
    current = _ranks(kube, job, only_rank)
    if not current:
        raise _no_logs_error(job, only_rank, _ranks(kube, job, None))
    printer = _Printer(app)
    printer.note_ranks(current)
    for rank in current:
        if not rank.has_started:
            app.console.say(f"rank {rank.number} has not started: {rank.waiting_for}")
            continue
        for line in kube.pod_logs(rank.pod, job.namespace, container=rank.container, tail=tail):
            printer.print(rank, line)


def follow_logs(app: App, target: Target, name: str, only_rank: int | None, tail: int | None) -> None:
    """Print the lines of all ranks as they are written, until the job has ended and everything is printed."""
    kube = app.connect(target)
    job = view(fetch(kube, target, name))
    lines: queue.Queue[Line] = queue.Queue()
    printer, streamed, running = _Printer(app), set[tuple[str, str]](), 0
    last_message = ""
    while True:
        current = _ranks(kube, job, only_rank)
        if job.is_terminal and not current and not streamed:
            raise _no_logs_error(job, only_rank, _ranks(kube, job, None))
        printer.note_ranks(current)
        for rank in current:
            if rank.has_started and rank.key not in streamed:
                streamed.add(rank.key)
                running += 1
                _start_reader(kube, job.namespace, rank, lines, tail)
        if not running:
            last_message = _report_waiting(app, job, current, last_message)
        running -= _print_lines(lines, printer, _POLL_S)
        try:
            job = view(fetch(kube, target, name))
        except MissingError:
            app.console.say(f"job {name!r} was deleted")
            return
        if job.is_terminal and not running and not _has_unread_ranks(kube, job, only_rank, streamed):
            app.console.say(_final_line(job))
            return


def _ranks(kube: Kube, job: JobView, only_rank: int | None) -> list[Rank]:
    pods = kube.list(PODS, job.namespace, labels=labels.selector(job.name)).items
    ours = [pod for pod in pods if pod["metadata"]["labels"].get(labels.JOB_UID, job.uid) == job.uid]
    return ranks(ours, only_rank)


def _has_unread_ranks(kube: Kube, job: JobView, only_rank: int | None, streamed: set[tuple[str, str]]) -> bool:
    return any(rank.has_started and rank.key not in streamed for rank in _ranks(kube, job, only_rank))


def _start_reader(kube: Kube, namespace: str, rank: Rank, lines: queue.Queue[Line], tail: int | None) -> None:
    def read() -> None:
        try:
            for line in kube.pod_logs(rank.pod, namespace, container=rank.container, follow=True, tail=tail):
                lines.put((rank, line))
        except NotFound:
            pass  # the pod was deleted during the read: the job restarts or ends
        except ApiError as error:
            lines.put((rank, f"(the log of pod {rank.pod} ended early: {error})"))
        finally:
            lines.put((rank, _END))

    threading.Thread(target=read, name=f"logs of rank {rank.number}", daemon=True).start()


def _print_lines(lines: queue.Queue[Line], printer: _Printer, seconds: float) -> int:
    """Print the lines that arrive within `seconds` and return how many readers have ended."""
    ended = 0
    deadline = time.monotonic() + seconds
    while (remaining := deadline - time.monotonic()) > 0:
        try:
            rank, line = lines.get(timeout=remaining)
        except queue.Empty:
            break
        if line is _END:
            ended += 1
        else:
            printer.print(rank, line)
    return ended


class _Printer:
    """Print lines to stdout. With more than one rank each line begins with its rank; a new attempt is announced."""

    def __init__(self, app: App) -> None:
        self._console = app.console
        self._has_many = False
        self._attempt = 0

    def note_ranks(self, current: list[Rank]) -> None:
        """Learn whether there is more than one rank."""
        self._has_many = self._has_many or any(rank.number > 0 for rank in current)

    def print(self, rank: Rank, line: str) -> None:
        if line.startswith(PROGRESS_LINE):
            return  # for the operator
        if rank.attempt != self._attempt:
            if self._attempt or rank.attempt > 1:
                self._console.say(f"--- attempt {rank.attempt}")
            self._attempt = rank.attempt
        self._console.data(f"[{rank.number}] {line}" if self._has_many else line)


def _report_waiting(app: App, job: JobView, current: list[Rank], last_message: str) -> str:
    """Print why there is no output, once for each reason, and return the message."""
    if job.is_terminal:
        return last_message
    reasons = sorted({rank.waiting_for for rank in current if not rank.has_started})
    text = f"waiting for the trainer: job is {job.phase}" + (f" ({'; '.join(reasons)})" if reasons else "")
    if text != last_message:
        app.console.say(text)
    return text


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
