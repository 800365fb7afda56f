"""What the page reads of run directories: metrics, parsed once and continued as they grow, and samples.

A run directory that is on a claim is not read: that would take a pod, and the page changes nothing.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ptapi.run_directory import METRICS, OWNER
from ptctl.errors import CliError, MissingError
from ptctl.jobs.view import JobView
from ptctl.page.curves import MetricColumns
from ptctl.runs.storage import bucket, claim, directory
from ptctl.ui.app import App, Target

_KEPT_RUNS = 8
"""Runs whose metrics stay parsed: 100,000 steps of 20 metrics are 35 MB."""
_LARGE = 1 << 23
"""Bytes of metrics from which on an outline is shown first: parsing takes 30 ms for each of these 8 MB."""
_OUTLINE_ROWS = 1000
_OVERLAP = 4096
"""Bytes read again before new ones: where they differ, the file is another one and is read from its beginning."""


class RunFiles:
    """The metrics and samples of runs. with_local_files: False where files of this machine are nobody's runs."""

    def __init__(self, *, with_local_files: bool = True) -> None:
        self._runs: OrderedDict[str, _Metrics] = OrderedDict()
        self._lock = threading.Lock()
        self._with_local_files = with_local_files

    @contextmanager
    def metrics(self, job: JobView) -> Iterator[MetricColumns]:
        """Give the metrics that the run has written so far, to one thread at a time."""
        uri = self._checked(job)
        with self._lock:
            metrics = self._runs.pop(uri, None) or _Metrics(uri)
            self._runs[uri] = metrics
            while len(self._runs) > _KEPT_RUNS:
                self._runs.popitem(last=False)
        with metrics.lock:
            yield metrics.refresh()

    def sample_steps(self, job: JobView) -> list[int]:
        """Return the steps that have samples, in order."""
        uri = self._checked(job)
        if uri.startswith("gs://"):
            names = bucket.names(uri, "samples/step-*.jsonl")
            return [int(name[-14:-6]) for name in names if name[-14:-6].isdecimal()]
        return directory.sample_steps(directory.local_path(uri, "samples"))

    def samples(self, job: JobView, step: int) -> list[directory.Row]:
        """Return the samples of a step. Raises MissingError if it has none."""
        self._checked(job)
        pattern = f"samples/step-{step:08d}.jsonl"
        with claim.run_directory(App(), Target(), job, pattern) as run:
            return directory.samples(run, step)[1]

    def _checked(self, job: JobView) -> str:
        """Return the URI of a run directory that may be read for this job."""
        uri = job.run_uri
        if not uri:
            raise MissingError(f"job {job.name!r} has no run directory")
        if uri.startswith("gs://"):
            if not self._with_local_files:
                _check_owner(job, uri)
        elif not self._with_local_files or claim.is_elsewhere(job):
            raise CliError(
                f"{uri} is not in a bucket, and cannot be read from here", f"ptctl workload metrics {job.name}"
            )
        return uri


def _check_owner(job: JobView, uri: str) -> None:
    """Raise MissingError unless the directory is this job's: a URI in a spec proves no right to read what is there."""
    try:
        owner = json.loads(bucket.newer(uri, OWNER, 0))
    except ValueError:
        owner = None
    if not isinstance(owner, dict) or not job.uid or owner.get("uid") != job.uid:
        raise MissingError(f"{uri} is not the run directory of job {job.name!r}: {OWNER} names another job, or none")


class _Metrics:
    """metrics.jsonl of one run, as far as it is parsed."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._columns, self._offset, self._tail = MetricColumns(), 0, b""
        self._reader: threading.Thread | None = None
        self.lock = threading.Lock()

    def refresh(self) -> MetricColumns:
        """Parse what is new, and return all of it; of a large file an outline first, while the rest is parsed."""
        if self._offset == 0 and self._reader is None and _size(self._uri) > _LARGE:
            self._columns = _outline(self._uri)
            self._reader = threading.Thread(target=self._read_whole, daemon=True)
            self._reader.start()
        return self._columns if self._reader is not None else self._continue()

    def _read_whole(self) -> None:
        whole = _Metrics(self._uri)
        try:
            whole._continue()
        finally:
            with self.lock:
                self._columns, self._offset, self._tail = whole._columns, whole._offset, whole._tail
                self._reader = None

    def _continue(self) -> MetricColumns:
        start = self._offset - len(self._tail)
        content = _content(self._uri, start)
        if not content.startswith(self._tail):
            self._columns, self._offset, self._tail, start = MetricColumns(), 0, b"", 0
            content = _content(self._uri, 0)
        end = content.rfind(b"\n") + 1
        if end > self._offset - start:
            self._columns.read(content[self._offset - start : end].splitlines())
            self._offset, self._tail = start + end, content[max(0, end - _OVERLAP) : end]
        return self._columns


def _size(uri: str) -> int:
    """Return the bytes of metrics.jsonl on this machine; 0 of one that is elsewhere, or not there."""
    try:
        return 0 if uri.startswith("gs://") else _file(uri).stat().st_size
    except OSError:
        return 0


def _outline(uri: str) -> MetricColumns:
    """Return rows from all over a large file, read in a hundredth of the time."""
    columns = MetricColumns(is_whole=False)
    size = _size(uri)
    with _file(uri).open("rb") as file:
        for part in range(_OUTLINE_ROWS):
            file.seek(size * part // _OUTLINE_ROWS)
            file.readline()  # the rest of a row
            columns.read([file.readline()])
    return columns


def _file(uri: str) -> Path:
    return Path(uri.removeprefix("file://"), METRICS)


def _content(uri: str, start: int) -> bytes:
    """Return metrics.jsonl from a byte on; nothing if there is none yet."""
    if uri.startswith("gs://"):
        return bucket.newer(uri, METRICS, start)
    try:
        with _file(uri).open("rb") as file:
            file.seek(start)
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return b""
