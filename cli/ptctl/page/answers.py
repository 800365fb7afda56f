"""The page's answers: what each path of /api reads, as a document for JSON. Nothing here writes anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NoReturn

from ptctl.cluster.actions import usage
from ptctl.errors import InputError, MissingError
from ptctl.jobs.view import JobView, view
from ptctl.page import documents
from ptctl.page.callers import CallersJobs
from ptctl.page.job_sources import JobSource, identity_of
from ptctl.page.run_files import RunFiles
from ptctl.runs.comparison import differences, lasting_results
from ptctl.runs.metric_table import USUAL_METRICS
from ptkube.errors import ApiError

Document = dict[str, Any]
Query = Mapping[str, str]
_WIDEST = 4000
"""Most points of a curve: a wide screen has fewer pixels."""
_MOST_RUNS = 12


@dataclass(frozen=True)
class Answers:
    """Reads of one source of jobs and of their run directories. caller: whose rights count beside the process's own."""

    source: JobSource
    files: RunFiles = field(default_factory=RunFiles)
    caller: CallersJobs | None = None

    def jobs(self, query: Query) -> Document:
        """Return every job as a row, the newest first."""
        now = datetime.now(UTC)
        rows = [documents.row(identity_of(job, self.source), view(job), now) for job in self.source.jobs()]
        rows.sort(key=lambda row: str(row["created"]), reverse=True)
        return {"source": self.source.title, "cluster": self.source.kube is not None, "items": rows}

    def job(self, query: Query) -> Document:
        """Return everything about the job `id`."""
        manifest = self.source.job(_text(query, "id"))
        events = self.source.events(manifest)
        job = documents.details(_text(query, "id"), view(manifest), events, datetime.now(UTC))
        return {**job, "source": self.source.title}

    def metrics(self, query: Query) -> Document:
        """Return the names of a run's metrics, the usual ones first, and how far it is."""
        with self.files.metrics(self._run(_text(query, "id"))) as columns:
            names = columns.names
            usual = [name for name in USUAL_METRICS if name in names]
            latest = {name: columns.latest(name) for name in names}
            last, is_whole = columns.last_step, columns.is_whole
        return {
            "usual": usual,
            "names": sorted(names),
            "latest": latest,
            "step": last,
            "rows": len(columns),
            "whole": is_whole,
        }

    def curve(self, query: Query) -> Document:
        """Return the metric `metric` of the jobs `id` (with commas between), over `by` from `from` to `to`."""
        identities = _text(query, "id").split(",")
        if len(identities) > _MOST_RUNS:
            _refuse("id", f"{len(identities)} jobs", f"at most {_MOST_RUNS}")
        by, width = query.get("by", "step"), int(_number(query, "width") or 800)
        if by not in ("step", "time"):
            _refuse("by", by, "step or time")
        width = min(max(width, 1), _WIDEST)
        low, high = _number(query, "from"), _number(query, "to")
        runs = []
        for identity in identities:
            with self.files.metrics(self._run(identity)) as columns:
                curve = columns.curve(_text(query, "metric"), "step" if by == "step" else "time", low, high, width)
            runs.append({"id": identity, **curve._asdict()})
        return {"metric": query["metric"], "runs": runs}

    def samples(self, query: Query) -> Document:
        """Return the samples of the step `step`, by default the newest, and which steps are around it."""
        job = self._run(_text(query, "id"))
        steps = self.files.sample_steps(job)
        if not steps:
            return {"steps": [], "step": None, "rows": []}
        wanted = _number(query, "step")
        step = steps[-1] if wanted is None else min(steps, key=lambda each: abs(each - wanted))
        index = steps.index(step)
        around = {"first": steps[0], "last": steps[-1], "count": len(steps), "index": index}
        neighbours = {
            "previous": steps[index - 1] if index else None,
            "next": steps[index + 1] if steps[index + 1 :] else None,
        }
        return {"step": step, **around, **neighbours, "rows": self.files.samples(job, step)}

    def capacity(self, query: Query) -> Document:
        """Return who waits, what each queue has, and which jobs use which node's chips; notes: what may not be read."""
        jobs = self.source.jobs()
        attempts = [_attempts(identity_of(job, self.source), view(job)) for job in jobs]
        answer: Document = {"queue": usage.queue_rows(jobs), "attempts": [row for rows in attempts for row in rows]}
        kube, notes = self.source.kube, []
        for name, read in (("quota", usage.quota_rows), ("pools", usage.pool_rows), ("nodes", usage.node_rows)):
            try:
                if self.caller is not None:
                    self.caller.check_nodes()
                answer[name] = None if kube is None else read(kube)
            except ApiError as error:
                answer[name] = None
                notes.append(f"{name}: {error}")
        return {**answer, "source": self.source.title, "notes": notes, "cluster": kube is not None}

    def diff(self, query: Query) -> Document:
        """Return the fields of spec and results in which the jobs `a` and `b` differ."""
        first, second = (self._job(_text(query, name)) for name in ("a", "b"))
        sections = {
            "spec": differences(first.raw.get("spec"), second.raw.get("spec")),
            "results": differences(lasting_results(first), lasting_results(second)),
        }
        rows = {
            name: [{"field": path, "a": a, "b": b} for path, (a, b) in section.items()]
            for name, section in sections.items()
        }
        return {"a": query["a"], "b": query["b"], **rows}

    def _job(self, identity: str) -> JobView:
        return view(self.source.job(identity))

    def _run(self, identity: str) -> JobView:
        """Return a job whose run directory may be read."""
        job = self._job(identity)
        if self.caller is not None:
            self.caller.check_run(job.raw)
        return job


def _attempts(identity: str, job: JobView) -> Sequence[Document]:
    if job.is_terminal:
        return []
    capacity = (job.raw.get("status") or {}).get("capacity") or {}
    return [{"id": identity, **attempt} for attempt in capacity.get("attempts") or []]


def _text(query: Query, name: str) -> str:
    value = query.get(name, "")
    if not value:
        raise MissingError(f"{name}: not set; accepted: a text")
    return value


def _number(query: Query, name: str) -> float | None:
    text = query.get(name, "")
    try:
        number = float(text) if text else None
    except ValueError:
        number = float("nan")
    if number is not None and not abs(number) < 1e300:
        _refuse(name, text, "a number")
    return number


def _refuse(name: str, value: str, accepted: str) -> NoReturn:
    raise InputError(f"{name}: {value!r}; accepted: {accepted}")
