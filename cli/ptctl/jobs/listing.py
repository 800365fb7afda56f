"""Print many jobs, once or on every change."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime

from ptctl.jobs import columns
from ptctl.jobs.lookup import Filter, fetch, namespace_of
from ptctl.jobs.view import JobView, view
from ptctl.ui import name_cache
from ptctl.ui.app import App, Target
from ptctl.ui.output import DOCUMENT_FORMS, RESOURCE, show, to_yaml, without_managed_fields
from ptctl.ui.table import GAP, line, widths
from ptkube.resources import POSTTRAINJOBS, Manifest
from ptkube.watch import changes


def print_jobs(app: App, target: Target, job_filter: Filter, form: str | None) -> None:
    """Print the jobs that match the filter, sorted by namespace and name."""
    kube = app.connect(target)
    namespace = namespace_of(kube, target)
    jobs = [view(job) for job in kube.list(POSTTRAINJOBS, namespace, labels=job_filter.labels).items]
    if namespace is not None and job_filter.labels is None:
        name_cache.remember(target, [job.name for job in jobs])
    jobs = sorted((job for job in jobs if job_filter.matches(job)), key=lambda job: (job.namespace, job.name))
    if form in DOCUMENT_FORMS:
        show(app.console, [job.raw for job in jobs], str(form), as_list=True)
    elif jobs:
        JobTable(app, form == "wide", target.everywhere).print(jobs)
    else:
        app.console.say("no jobs found in " + ("any namespace" if namespace is None else f"namespace {namespace!r}"))


def print_named(app: App, target: Target, names: Sequence[str], form: str | None) -> None:
    """Print the named jobs in the given order. Raises MissingError for the first that does not exist."""
    kube = app.connect(target)
    jobs = [fetch(kube, target, name) for name in names]
    if form in DOCUMENT_FORMS:
        show(app.console, jobs, str(form))
    else:
        JobTable(app, form == "wide", with_namespace=False).print([view(job) for job in jobs])


def watch_jobs(app: App, target: Target, job_filter: Filter, form: str | None) -> None:
    """Print the matching jobs, then each change, until interrupted. In document forms each line is one document."""
    kube = app.connect(target)
    for name in job_filter.names:
        fetch(kube, target, name)
    table = JobTable(app, form == "wide", target.everywhere)
    initial: list[JobView] = []
    is_synced = False
    for kind, item in changes(kube, POSTTRAINJOBS, namespace_of(kube, target), labels=job_filter.labels):
        if kind == "SYNCED":
            if not is_synced and form not in DOCUMENT_FORMS:
                table.print(sorted(initial, key=lambda job: (job.namespace, job.name)))
            is_synced = True
            continue
        job = view(item)
        if not job_filter.matches(job) and not (job_filter.status and is_synced):
            continue
        if form in DOCUMENT_FORMS:
            app.console.data(_format_document(item, str(form)))
        elif is_synced:
            table.print([job], is_deleted=kind == "DELETED")
        else:
            initial.append(job)


def _format_document(item: Manifest, form: str) -> str:
    if form == "json":
        return json.dumps(without_managed_fields(item))
    return (
        f"{RESOURCE}/{item['metadata']['name']}" if form == "name" else f"{to_yaml(without_managed_fields(item))}\n---"
    )


class JobTable:
    """A table that grows: its columns are chosen and sized with the first rows."""

    def __init__(self, app: App, wide: bool, with_namespace: bool) -> None:
        self._console = app.console
        self._columns = columns.select_columns(wide, with_namespace)
        self._shows_all = wide
        self._kept: list[int] = []
        self._sizes: list[int] = []

    def print(self, jobs: Sequence[JobView], *, is_deleted: bool = False) -> None:
        """Print a row for each job."""
        now = datetime.now(UTC)
        rows = [[column.cell(job, now) for column in self._columns] for job in jobs]
        if is_deleted:
            rows = [
                ["Deleted" if self._columns[i].title == "PHASE" else cell for i, cell in enumerate(row)] for row in rows
            ]
        if not self._sizes and rows:
            self._print_header(rows)
        for row in rows:
            text = line([row[i] for i in self._kept], self._sizes)
            self._console.data(self._paint(text, row))

    def _print_header(self, rows: list[list[str]]) -> None:
        width = None if self._shows_all else self._console.width
        self._kept = columns.columns_that_fit(self._columns, rows, width)
        titles = [self._columns[i].title for i in self._kept]
        self._sizes = widths([titles, *([row[i] for i in self._kept] for row in rows)])
        self._console.data(line(titles, self._sizes))

    def _paint(self, text: str, row: list[str]) -> str:
        """Colour the phase; its position follows from the column widths, so equal text elsewhere stays plain."""
        index = next(i for i, column in enumerate(self._columns) if column.title == "PHASE")
        colour = columns.PHASE_COLOURS.get(row[index], "")
        at = sum(size + GAP for size in self._sizes[: self._kept.index(index)])
        end = at + len(row[index])
        return text[:at] + self._console.paint(text[at:end], colour) + text[end:] if colour else text
