"""Logs of a job: what exists now, or a stream that goes on through restarts until the job ends.

One thread per rank reads its pod, one queue orders the lines as they arrive, and only the main thread prints.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
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


@dataclass(frozen=True)
class Selection:
    """Which lines are printed; None: all. since_s: those of the newest seconds; tail: the newest of each rank."""

    rank: int | None = None
    attempt: int | None = None
    tail: int | None = None
    since_s: int | None = None
    pattern: re.Pattern[str] | None = None

    def includes(self, rank: Rank) -> bool:
        """Return True if this rank's lines are printed."""
        return self.rank in (None, rank.number) and self.attempt in (None, rank.attempt)

    def read(self, kube: Kube, namespace: str, rank: Rank, *, follow: bool = False) -> Iterator[str]:
        """Yield the lines of a rank, without what the trainer says to the operator."""
        for line in kube.pod_logs(
            rank.pod, namespace, container=rank.container, follow=follow, tail=self.tail, since_s=self.since_s
        ):
            if not line.startswith(PROGRESS_LINE) and (self.pattern is None or self.pattern.search(line)):
                yield line


def print_logs(app: App, target: Target, name: str, selection: Selection) -> None:
    """Print what the ranks have written so far, newest attempt last; a line that several ranks wrote, once."""
    kube = app.connect(target)
    job = view(fetch(kube, target, name))
    current = _ranks(kube, job, selection)
    if not current:
        raise _no_logs_error(job, selection, _ranks(kube, job, Selection()))
    printer = _Printer(app)
    printer.note_ranks(current)
    for _, attempt in groupby(current, key=lambda rank: rank.attempt):
        started = []
        for rank in attempt:
            if rank.has_started:
                started.append(rank)
            else:
                app.console.say(f"rank {rank.number} has not started: {rank.waiting_for}")
        for line, writers in _folded(kube, job.namespace, started, selection):
            printer.print(writers, line)


def _folded(
    kube: Kube, namespace: str, started: Sequence[Rank], selection: Selection
) -> Iterator[tuple[str, list[Rank]]]:
    """Yield each line with the ranks that wrote it, in the order of the first of them; one rank's as they arrive."""
    if len(started) == 1:
        yield from ((line, [started[0]]) for line in selection.read(kube, namespace, started[0]))
        return
    writers: dict[tuple[str, int], list[Rank]] = {}
    for rank in started:
        repeats: Counter[str] = Counter()
        for line in selection.read(kube, namespace, rank):
            writers.setdefault((line, repeats[line]), []).append(rank)
            repeats[line] += 1
    yield from ((line, who) for (line, _), who in writers.items())


def follow_logs(app: App, target: Target, name: str, selection: Selection) -> None:
    """Print the lines of all ranks as they are written, until the job has ended and everything is printed."""
    kube = app.connect(target)
    job = view(fetch(kube, target, name))
    lines: queue.Queue[Line] = queue.Queue()
    printer, streamed, running = _Printer(app), set[tuple[str, str]](), 0
    last_message = ""
    while True:
        current = _ranks(kube, job, selection)
        if job.is_terminal and not current and not streamed:
            raise _no_logs_error(job, selection, _ranks(kube, job, Selection()))
        printer.note_ranks(current)
        for rank in current:
            if rank.has_started and rank.key not in streamed:
                streamed.add(rank.key)
                running += 1
                _start_reader(kube, job.namespace, rank, lines, selection)
        if not running:
            last_message = _report_waiting(app, job, current, last_message)
        running -= _print_lines(lines, printer, _POLL_S)
        try:
            job = view(fetch(kube, target, name))
        except MissingError:
            app.console.say(f"job {name!r} was deleted")
            return
        if job.is_terminal and not running and not _has_unread_ranks(kube, job, selection, streamed):
            app.console.say(_final_line(job))
            return


def _ranks(kube: Kube, job: JobView, selection: Selection) -> list[Rank]:
    pods = kube.list(PODS, job.namespace, labels=labels.selector(job.name)).items
    ours = [pod for pod in pods if pod["metadata"]["labels"].get(labels.JOB_UID, job.uid) == job.uid]
    return [rank for rank in ranks(ours) if selection.includes(rank)]


def _has_unread_ranks(kube: Kube, job: JobView, selection: Selection, streamed: set[tuple[str, str]]) -> bool:
    return any(rank.has_started and rank.key not in streamed for rank in _ranks(kube, job, selection))


def _start_reader(kube: Kube, namespace: str, rank: Rank, lines: queue.Queue[Line], selection: Selection) -> None:
    def read() -> None:
        try:
            for line in selection.read(kube, namespace, rank, follow=True):
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
            printer.print([rank], line)
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

    def print(self, writers: Sequence[Rank], line: str) -> None:
        attempt = writers[0].attempt
        if attempt != self._attempt:
            if self._attempt or attempt > 1:
                self._console.say(f"--- attempt {attempt}")
            self._attempt = attempt
        self._console.data(f"[{_numbers(writers)}] {line}" if self._has_many else line)


def _numbers(writers: Sequence[Rank]) -> str:
    """Return the numbers of ranks, in ascending order, as `0`, `0,2` or `0-7`."""
    runs: list[list[int]] = []
    for number in (rank.number for rank in writers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _report_waiting(app: App, job: JobView, current: list[Rank], last_message: str) -> str:
    """Print why there is no output, once for each reason, and return the message."""
    if job.is_terminal:
        return last_message
    reasons = sorted({rank.waiting_for for rank in current if not rank.has_started})
    text = f"waiting for the trainer: job is {job.phase}" + (f" ({'; '.join(reasons)})" if reasons else "")
    if text != last_message:
        app.console.say(text)
    return text


def _no_logs_error(job: JobView, selection: Selection, others: list[Rank]) -> CliError:
    """Return the error for a job without logs, with where to look instead. others: the ranks that have pods."""
    rank = f", rank {selection.rank}," if selection.rank is not None else ""
    attempt = f", attempt {selection.attempt}," if selection.attempt is not None else ""
    whose = f"job {job.name!r}{rank}{attempt}"
    if others:
        numbers = ", ".join(str(number) for number in sorted({each.number for each in others})[:16])
        attempts = ", ".join(map(str, sorted({each.attempt for each in others})))
        return MissingError(
            f"{whose} has no pod; ranks with pods: {numbers}" + f"; attempts: {attempts}" * bool(attempt)
        )
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
