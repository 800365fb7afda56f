"""Logs of a job: what exists now, or a stream that goes on through restarts until the job ends.

One thread per rank reads its pod, one queue orders the lines as they arrive, and only the caller yields them.
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
from ptctl.jobs.view import JobView, part, view
from ptctl.runs.logs.log_layout import Entry, Layout
from ptctl.runs.logs.ranks import Rank, ranks
from ptctl.ui.app import App, Target
from ptkube.errors import ApiError, NotFound
from ptkube.resources import PODS
from ptoperator.kube import labels
from ptoperator.kube.names import CONTAINER, SAMPLER

if TYPE_CHECKING:
    from ptkube.client import Kube

_POLL_S = 1.0
_END = None
Line = tuple[Rank, str] | None


@dataclass(frozen=True)
class Limits:
    """Which lines are wanted; None: all.

    tail: the newest lines of each rank; since_s: those of the newest seconds. role: whose; a sampler's or
    service's rank is its number.
    """

    rank: int | None = None
    attempt: int | None = None
    tail: int | None = None
    since_s: int | None = None
    pattern: re.Pattern[str] | None = None
    role: str = CONTAINER

    def include(self, rank: Rank) -> bool:
        """Return True if lines of the rank are wanted."""
        return self.rank in (None, rank.number) and self.attempt in (None, rank.attempt)

    def read(self, kube: Kube, namespace: str, rank: Rank, *, follow: bool = False) -> Iterator[str]:
        """Yield the lines of a rank, without the progress that the trainer reports to the operator."""
        for line in kube.pod_logs(
            rank.pod, namespace, container=rank.container, follow=follow, tail=self.tail, since_s=self.since_s
        ):
            if not line.startswith(PROGRESS_LINE) and (self.pattern is None or self.pattern.search(line)):
                yield line


ALL_LINES = Limits()


def print_logs(app: App, target: Target, name: str, limits: Limits) -> None:
    """Print what the ranks have written so far, newest attempt last; a line that several ranks wrote, once."""
    kube = app.connect(target)
    _print(app, written(kube, view(fetch(kube, target, name)), limits))


def follow_logs(app: App, target: Target, name: str, limits: Limits) -> None:
    """Print the lines of all ranks as they are written, until the job has ended and everything is printed."""
    kube = app.connect(target)
    _print(app, followed(kube, view(fetch(kube, target, name)), limits))


def written(kube: Kube, job: JobView, limits: Limits = ALL_LINES) -> Iterator[Entry]:
    """Yield what the ranks have written so far, newest attempt last; a line that several ranks wrote, once."""
    current = _ranks(kube, job, limits)
    if not current:
        raise _no_logs_error(job, limits, _ranks(kube, job, Limits(role=limits.role)))
    layout = Layout()
    layout.note_ranks(current)
    for _, attempt in groupby(current, key=lambda rank: rank.attempt):
        started = []
        for rank in attempt:
            if rank.has_started:
                started.append(rank)
            else:
                yield Entry(f"rank {rank.number} has not started: {rank.waiting_for}", is_note=True)
        for line, writers in _folded(kube, job.namespace, started, limits):
            yield from layout.entries(writers, line)


def _folded(kube: Kube, namespace: str, started: Sequence[Rank], limits: Limits) -> Iterator[tuple[str, list[Rank]]]:
    """Yield each line with the ranks that wrote it, in the order of the first of them; one rank's as they arrive."""
    if len(started) == 1:
        yield from ((line, [started[0]]) for line in limits.read(kube, namespace, started[0]))
        return
    writers: dict[tuple[str, int], list[Rank]] = {}
    for rank in started:
        repeats: Counter[str] = Counter()
        for line in limits.read(kube, namespace, rank):
            writers.setdefault((line, repeats[line]), []).append(rank)
            repeats[line] += 1
    yield from ((line, ranks_of_line) for (line, _), ranks_of_line in writers.items())


def followed(kube: Kube, job: JobView, limits: Limits = ALL_LINES, poll_s: float = _POLL_S) -> Iterator[Entry]:
    """Yield the lines of all ranks as they are written, until the job has ended and everything is yielded.

    poll_s: how often to look for new pods and for the job's end.
    """
    lines: queue.Queue[Line] = queue.Queue()
    layout, streamed, running = Layout(), set[tuple[str, str]](), 0
    last_message = ""
    closed = threading.Event()
    try:
        while True:
            current = _ranks(kube, job, limits)
            if job.is_terminal and not current and not streamed:
                raise _no_logs_error(job, limits, _ranks(kube, job, Limits(role=limits.role)))
            layout.note_ranks(current)
            for rank in current:
                if rank.has_started and rank.key not in streamed:
                    streamed.add(rank.key)
                    running += 1
                    _start_reader(kube, job.namespace, rank, lines, limits, closed)
            if not running and (message := _waiting_message(job, current, limits.role)) not in ("", last_message):
                last_message = message
                yield Entry(message, is_note=True)
            for arrived in _arrivals(lines, poll_s):
                if arrived is _END:
                    running -= 1
                else:
                    rank, line = arrived
                    yield from layout.entries([rank], line)
            try:
                job = view(fetch(kube, Target(job.namespace), job.name))
            except MissingError:
                yield Entry(f"job {job.name!r} was deleted", is_note=True)
                return
            if job.is_terminal and not running and not _has_unread_ranks(kube, job, limits, streamed):
                yield Entry(_final_line(job), is_note=True)
                return
    finally:
        closed.set()


def _print(app: App, entries: Iterator[Entry]) -> None:
    for entry in entries:
        (app.console.say if entry.is_note else app.console.data)(entry.text)


def _ranks(kube: Kube, job: JobView, limits: Limits = ALL_LINES) -> list[Rank]:
    pods = kube.list(PODS, job.namespace, labels=labels.selector(job.name)).items
    ours = [pod for pod in pods if pod["metadata"]["labels"].get(labels.JOB_UID, job.uid) == job.uid]
    return [rank for rank in ranks(ours, limits.role) if limits.include(rank)]


def _has_unread_ranks(kube: Kube, job: JobView, limits: Limits, streamed: set[tuple[str, str]]) -> bool:
    return any(rank.has_started and rank.key not in streamed for rank in _ranks(kube, job, limits))


def _start_reader(
    kube: Kube, namespace: str, rank: Rank, lines: queue.Queue[Line], limits: Limits, closed: threading.Event
) -> None:
    def read() -> None:
        try:
            for line in limits.read(kube, namespace, rank, follow=True):
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


def _waiting_message(job: JobView, current: list[Rank], role: str) -> str:
    """Return why there is no output; empty once the job has ended."""
    if job.is_terminal:
        return ""
    reasons = sorted({rank.waiting_for for rank in current if not rank.has_started})
    return f"waiting for the {role}: job is {job.phase}" + (f" ({'; '.join(reasons)})" if reasons else "")


def _no_logs_error(job: JobView, limits: Limits, others: list[Rank]) -> CliError:
    """Return the error for a job without logs, with where to look instead. others: the ranks that have pods."""
    rank = f", rank {limits.rank}," if limits.rank is not None else ""
    attempt = f", attempt {limits.attempt}," if limits.attempt is not None else ""
    whose = f"job {job.name!r}{rank}{attempt}"
    if not others and (missing := _missing_role(job, limits.role)) is not None:
        return MissingError(f"{whose} {missing[0]}", missing[1])
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


def _missing_role(job: JobView, role: str) -> tuple[str, str] | None:
    """Return what the job lacks, and a hint, if it has no such role."""
    spec = part(job.raw, "spec", missing={})
    if role == SAMPLER and not (spec.get("rollout") or {}).get("separate"):
        return "has no samplers with pods of their own", "rollout: {placement: separate}"
    services = [service["name"] for service in spec.get("services") or []]
    if role not in (CONTAINER, SAMPLER, *services):
        return f"has no role {role!r}", f"--role {', '.join((CONTAINER, SAMPLER, *services))}"
    return None


def _final_line(job: JobView) -> str:
    failure = f": {job.failure}" if job.failure else ""
    return f"job {job.name!r} {job.phase.lower()}{failure}"
