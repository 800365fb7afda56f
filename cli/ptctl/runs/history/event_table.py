"""Kubernetes' events of a job, of its JobSet and of its pods, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ptctl.errors import MissingError
from ptctl.jobs.lookup import fetch
from ptctl.jobs.view import JobView, view
from ptctl.ui.app import App, Target
from ptctl.ui.duration import age
from ptctl.ui.table import table_or_records
from ptkube import timestamps
from ptkube.resources import EVENTS, PODS, Manifest
from ptkube.watch import changes
from ptoperator.kube import labels

if TYPE_CHECKING:
    from ptkube.client import Kube


def print_events(app: App, target: Target, name: str, form: str | None) -> None:
    """Print the events, oldest first."""
    import json

    kube = app.connect(target)
    job = view(fetch(kube, target, name))
    events = sorted(_of_job(kube, job, kube.list(EVENTS, job.namespace).items), key=event_time)
    if form == "json":
        app.console.data(json.dumps({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": events}, indent=2))
    elif events:
        now = datetime.now(UTC)
        rows = [(*_cells(event, now)[:1], _about(event), *_cells(event, now)[1:]) for event in events]
        app.console.data(table_or_records(("AGE", "OBJECT", "TYPE", "REASON", "MESSAGE"), rows, app.console.width))
    else:
        app.console.say(f"no events of job {name!r}: Kubernetes keeps them for an hour")


def watch_events(app: App, target: Target, name: str, form: str | None) -> None:
    """Print the events, then each new one, until interrupted. JSON: one document a line."""
    kube = app.connect(target)
    job = view(fetch(kube, target, name))
    listed: list[Manifest] | None = []
    for kind, event in changes(kube, EVENTS, job.namespace):
        if kind == "SYNCED" and listed is not None:
            _print_lines(app, sorted(_of_job(kube, job, listed), key=event_time), form)
            listed = None
        elif listed is not None:
            listed.append(event)
        elif kind in ("ADDED", "MODIFIED"):
            if not job.job_set:  # it may have one by now
                with suppress(MissingError):
                    job = view(fetch(kube, target, name))
            _print_lines(app, _of_job(kube, job, [event]), form)


def _print_lines(app: App, events: Iterable[Manifest], form: str | None) -> None:
    """Print a line for each: what comes later has no place in a table that is there already."""
    import json

    for event in events:
        moment = timestamps.from_text(event_time(event))
        clock = moment.astimezone().strftime("%H:%M:%S") if moment else ""
        cells = (clock, _about(event), *_cells(event, datetime.now(UTC))[1:])
        app.console.data(json.dumps(event) if form == "json" else "  ".join(filter(None, cells)))


def job_event_rows(job: JobView, events: Sequence[Manifest], newest: int, now: datetime) -> list[tuple[str, ...]]:
    """Return age, type, reason and message of the job's own newest events, oldest first."""
    own = sorted(filter(lambda event: is_about(event, job), events), key=event_time)
    return [_cells(event, now) for event in own[-newest:]]


def event_time(event: Manifest) -> str:
    """Return when the event was last noticed."""
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")


def _of_job(kube: Kube, job: JobView, events: Sequence[Manifest]) -> Iterator[Manifest]:
    """Yield the events of the job, of its JobSet and of its pods."""
    pods = kube.list(PODS, job.namespace, labels=labels.selector(job.name)).items if events else []
    names = {job.name, job.job_set, *(pod["metadata"]["name"] for pod in pods)} - {""}
    for event in events:
        if event["involvedObject"].get("name") in names and (
            event["involvedObject"].get("kind") != "PostTrainJob" or is_about(event, job)
        ):
            yield event


def is_about(event: Manifest, job: JobView) -> bool:
    """Return True unless the event is about an earlier job of this name."""
    return bool(event["involvedObject"].get("uid", job.uid) == job.uid)


def _about(event: Manifest) -> str:
    about = event["involvedObject"]
    return f"{about.get('kind', '')}/{about['name']}".lstrip("/")


def _cells(event: Manifest, now: datetime) -> tuple[str, ...]:
    message = " ".join(str(event.get("message") or "").split())
    return age(event_time(event), now), str(event.get("type") or ""), str(event.get("reason") or ""), message
