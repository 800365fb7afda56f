"""A job's life as a list of moments and spans, from its status and the events that Kubernetes still has.

The status keeps when each attempt at capacity began and ended, when each condition last changed, and the newest
failure; earlier restarts are known from events alone, which live for an hour.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ptctl.errors import InputError
from ptctl.jobs.lookup import fetch
from ptctl.jobs.view import JobView, part, view
from ptctl.runs.history.event_table import event_time, is_about
from ptctl.runs.history.timeline_svg import svg_of
from ptctl.ui.app import App, Target
from ptctl.ui.duration import short
from ptctl.ui.table import table_or_records
from ptkube import timestamps
from ptkube.resources import EVENTS, Manifest

_RESTARTING = "Restarting"
_SHARES = ("queueing", "provisioning", "restoring", "compiling", "training")


@dataclass(frozen=True)
class Entry:
    """Something that began, and ended where it is no moment. kind: capacity, phase, restart or end."""

    kind: str
    start: datetime
    end: datetime | None
    text: str

    @property
    def seconds(self) -> float | None:
        """Return the duration; None of a moment."""
        return None if self.end is None else (self.end - self.start).total_seconds()


def print_timeline(app: App, target: Target, name: str, svg: str | None, form: str | None) -> None:
    """Print the job's timeline, and draw it into a file where one is named."""
    kube = app.connect(target)
    job = view(fetch(kube, target, name))
    now = datetime.now(UTC)
    items = entries(job, kube.list(EVENTS, job.namespace, fields=f"involvedObject.name={name}").items, now)
    if svg is not None:
        _write(svg, svg_of(job.name, [(item.kind, item.start, item.end or item.start, item.text) for item in items]))
    if form == "json":
        app.console.data(json.dumps({"items": [_document(item) for item in items]}, indent=2))
        return
    rows = [
        (timestamps.to_text(item.start), "" if item.seconds is None else short(item.seconds), item.kind, item.text)
        for item in items
    ]
    app.console.data(table_or_records(("BEGAN", "FOR", "KIND", "WHAT"), rows, app.console.width))
    spent = part(job.raw, "status", "time", missing={})
    shares = ", ".join(f"{kind} {short(spent[kind])}" for kind in _SHARES if spent.get(kind))
    if shares:
        app.console.data(f"\nTime spent: {shares}")


def entries(job: JobView, events: Sequence[Manifest], now: datetime) -> list[Entry]:
    """Return what happened to the job, by the time at which it began."""
    items = [*_waiting(job, now), *_attempts(job, now), *_running(job, now), *_restarts(job, events), *_end(job)]
    return sorted(items, key=lambda entry: entry.start)


def _time(text: object) -> datetime | None:
    return timestamps.from_text(str(text or ""))


def _finish(job: JobView) -> datetime | None:
    return _time(part(job.raw, "status", "completionTime", missing=""))


def _waiting(job: JobView, now: datetime) -> Iterator[Entry]:
    """Yield the time from creation to the first nodes."""
    created = _time(job.created)
    if created is not None:
        started = _time(part(job.raw, "status", "startTime", missing=""))
        yield Entry("phase", created, started or _finish(job) or now, "waiting for preflight, quota and chips")


def _attempts(job: JobView, now: datetime) -> Iterator[Entry]:
    for attempt in part(job.raw, "status", "capacity", "attempts", missing=[]):
        start = _time(attempt.get("started"))
        if start is not None:
            end = _time(attempt.get("ready")) or _time(attempt.get("ended")) or _finish(job) or now
            outcome = "chips were ready" if attempt.get("ready") else attempt.get("outcome") or "in progress"
            yield Entry("capacity", start, end, f"{attempt['option']}: {outcome}")


def _running(job: JobView, now: datetime) -> Iterator[Entry]:
    """Yield the time since the pods first got their nodes."""
    start = _time(part(job.raw, "status", "startTime", missing=""))
    if start is not None:
        yield Entry("phase", start, _finish(job) or now, f"on its chips{f', step {job.progress}' if job.total else ''}")


def _restarts(job: JobView, events: Sequence[Manifest]) -> Iterator[Entry]:
    restarts = [event for event in events if event.get("reason") == _RESTARTING and is_about(event, job)]
    for event in restarts:
        start = _time(event_time(event))
        if start is not None:
            yield Entry("restart", start, None, " ".join(str(event.get("message") or "").split()))
    failed = _time(part(job.raw, "status", "failure", "time", missing=""))
    if failed is not None and not restarts and job.phase != "Failed":
        yield Entry("restart", failed, None, job.failure)


def _end(job: JobView) -> Iterator[Entry]:
    end = _finish(job)
    if end is not None:
        yield Entry("end", end, None, job.phase + (f": {job.failure}" if job.phase == "Failed" and job.failure else ""))


def _document(item: Entry) -> dict[str, object]:
    end = None if item.end is None else timestamps.to_text(item.end)
    return {"kind": item.kind, "began": timestamps.to_text(item.start), "ended": end, "seconds": item.seconds,
            "text": item.text}  # fmt: skip


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--svg {path!r}: cannot be written: {error.strerror}; accepted: a file to create") from error
