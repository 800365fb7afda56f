"""Logs of a job: what is there now, or a stream that goes on through restarts until the job ends.

A thread per rank reads its pod; one queue orders the lines as they come; only the main thread prints.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING

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

_LOOK_EVERY_S = 1.0
_END = None
Line = tuple[Rank, str | None]


def print_logs(app: App, target: Target, name: str, only: int | None, tail: int | None) -> None:
    """What the ranks have written so far, one rank after the other, newest attempt last."""
    kube = app.connect(target)
    job = view(fetch(kube, target, name))
    found = _ranks(kube, job, only)
    if not found:
        raise _nothing(job, only, _ranks(kube, job, None))
    printer = _Printer(app)
    printer.look(found)
    for rank in found:
        if not rank.has_started:
            app.console.say(f"rank {rank.number} has not started: {rank.waiting_for}")
            continue
        for line in kube.pod_logs(rank.pod, job.namespace, container=rank.container, tail=tail):
            printer.print(rank, line)


def follow_logs(app: App, target: Target, name: str, only: int | None, tail: int | None) -> None:
    """Lines of all ranks as they are written, until the job has ended and everything is printed."""
    kube = app.connect(target)
    job = view(fetch(kube, target, name))
    lines: queue.Queue[Line] = queue.Queue()
    printer, known, running = _Printer(app), set[tuple[str, str]](), 0
    said = ""
    while True:
        found = _ranks(kube, job, only)
        if job.is_terminal and not found and not known:
            raise _nothing(job, only, _ranks(kube, job, None))
        printer.look(found)
        for rank in found:
            if rank.has_started and rank.key not in known:
                known.add(rank.key)
                running += 1
                _start_reader(kube, job.namespace, rank, lines, tail)
        if not running:
            said = _say_waiting(app, job, found, said)
        running -= _print_for(lines, printer, _LOOK_EVERY_S)
        try:
            job = view(fetch(kube, target, name))
        except MissingError:
            app.console.say(f"job {name!r} was deleted")
            return
        if job.is_terminal and not running and not _unread(kube, job, only, known):
            app.console.say(_ending(job))
            return


def _ranks(kube: Kube, job: JobView, only: int | None) -> list[Rank]:
    pods = kube.list(PODS, job.namespace, labels=labels.selector(job.name)).items
    ours = [pod for pod in pods if pod["metadata"]["labels"].get(labels.JOB_UID, job.uid) == job.uid]
    return ranks(ours, only)


def _unread(kube: Kube, job: JobView, only: int | None, known: set[tuple[str, str]]) -> bool:
    return any(rank.has_started and rank.key not in known for rank in _ranks(kube, job, only))


def _start_reader(kube: Kube, namespace: str, rank: Rank, lines: queue.Queue[Line], tail: int | None) -> None:
    def read() -> None:
        try:
            for line in kube.pod_logs(rank.pod, namespace, container=rank.container, follow=True, tail=tail):
                lines.put((rank, line))
        except NotFound:
            pass  # the pod was deleted while it was read: the job's restart, or its end
        except ApiError as error:
            lines.put((rank, f"(the log of pod {rank.pod} broke off: {error})"))
        finally:
            lines.put((rank, _END))

    threading.Thread(target=read, name=f"logs of rank {rank.number}", daemon=True).start()


def _print_for(lines: queue.Queue[Line], printer: _Printer, seconds: float) -> int:
    """Print what comes within that time; how many readers ended."""
    ended = 0
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        try:
            rank, line = lines.get(timeout=left)
        except queue.Empty:
            break
        if line is _END:
            ended += 1
        else:
            printer.print(rank, line)
    return ended


class _Printer:
    """Lines to stdout. The rank stands before them as soon as there is more than one; a new attempt is announced."""

    def __init__(self, app: App) -> None:
        self._console = app.console
        self._has_many = False
        self._attempt = 0

    def look(self, found: list[Rank]) -> None:
        """Learn how many ranks there are."""
        self._has_many = self._has_many or any(rank.number > 0 for rank in found)

    def print(self, rank: Rank, line: str) -> None:
        if rank.attempt != self._attempt:
            if self._attempt or rank.attempt > 1:
                self._console.say(f"--- attempt {rank.attempt}")
            self._attempt = rank.attempt
        self._console.data(f"[{rank.number}] {line}" if self._has_many else line)


def _say_waiting(app: App, job: JobView, found: list[Rank], said: str) -> str:
    """Why nothing is printed, once for each reason."""
    if job.is_terminal:
        return said
    reasons = sorted({rank.waiting_for for rank in found if not rank.has_started})
    text = f"waiting for the trainer: job is {job.phase}" + (f" ({'; '.join(reasons)})" if reasons else "")
    if text != said:
        app.console.say(text)
    return text


def _nothing(job: JobView, only: int | None, others: list[Rank]) -> CliError:
    """Why there are no logs, and where to look instead. others: ranks that have pods, where one was asked for."""
    whose = f"job {job.name!r}" + (f", rank {only}," if only is not None else "")
    if others:
        there = ", ".join(str(number) for number in sorted({rank.number for rank in others})[:16])
        return MissingError(f"{whose} has no pod; these ranks have: {there}")
    if job.is_terminal or job.phase == "Suspended":
        failure = f" ({job.failure})" if job.failure else ""
        return MissingError(
            f"{whose} has no pods any more: {job.phase}{failure}",
            f"what the run left is in {job.run_uri}: metrics.jsonl, samples/, termination.json",
        )
    return MissingError(f"{whose} has no pods yet: {job.phase}", "-f waits for them")


def _ending(job: JobView) -> str:
    failure = f": {job.failure}" if job.failure else ""
    return f"job {job.name!r} {job.phase.lower()}{failure}"
