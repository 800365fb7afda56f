"""Where the page's jobs come from: an API server, or a folder of runs on this machine or in a bucket.

A job has an id: `NAMESPACE/NAME` in a cluster, the folder's name among runs. Lists are kept for seconds, so that
several browsers cost the API server no more than one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ptapi.errors import SpecError
from ptapi.run_directory import SPEC
from ptctl.errors import InputError, MissingError
from ptctl.jobs.lookup import fetch
from ptctl.runs.storage import bucket, local_run
from ptctl.ui.app import Target
from ptkube.resources import EVENTS, POSTTRAINJOBS, Manifest

if TYPE_CHECKING:
    from ptkube.client import Kube

_READERS = 16
_AGE_S = 2.0
_PAUSE_S = 15.0
"""Longest that a list is shown beyond its age: pages that are looked at ask every five seconds."""
_definition = lru_cache(maxsize=4096)(local_run.definition)


class JobSource(Protocol):
    """Jobs by id. kube: the cluster they are in; None of runs without one."""

    title: str
    kube: Kube | None

    def jobs(self) -> list[Manifest]:
        """Return all jobs."""
        ...

    def job(self, identity: str) -> Manifest:
        """Return one job. Raises MissingError if there is none."""
        ...

    def events(self, job: Manifest) -> list[Manifest]:
        """Return what Kubernetes still says of a job."""
        ...


def identity_of(job: Manifest, source: JobSource) -> str:
    """Return the id of a job: what links carry."""
    meta = job["metadata"]
    return str(meta["name"]) if source.kube is None else f"{meta['namespace']}/{meta['name']}"


class ClusterJobs:
    """The jobs of a cluster: of these namespaces or, where none is named, of all."""

    def __init__(self, kube: Kube, namespaces: Sequence[str] = ()) -> None:
        self.kube: Kube | None = kube
        self._kube, self._namespaces = kube, namespaces
        self.title = f"namespace {', '.join(namespaces)}" if namespaces else "all namespaces"
        self._list = KeptFor(_AGE_S, self._read_all)

    def jobs(self) -> list[Manifest]:
        """Return the jobs, seconds old at most."""
        return self._list.value()

    def job(self, identity: str) -> Manifest:
        """Return the job as it is now."""
        namespace, _, name = identity.partition("/")
        if not (namespace and name) or "/" in name or (self._namespaces and namespace not in self._namespaces):
            raise MissingError(f"job {identity!r} is not in {self.title}; accepted: NAMESPACE/NAME of a job there")
        return fetch(self._kube, Target(namespace), name)

    def _read_all(self) -> list[Manifest]:
        lists = [self._kube.list(POSTTRAINJOBS, namespace).items for namespace in self._namespaces or (None,)]
        return [job for jobs in lists for job in jobs]

    def events(self, job: Manifest) -> list[Manifest]:
        """Return the events of the job itself."""
        meta = job["metadata"]
        return self._kube.list(EVENTS, meta["namespace"], fields=f"involvedObject.name={meta['name']}").items


class RunFolder:
    """The run directories in a folder, `file://` or `gs://`; or the folder itself, if it is one."""

    kube: Kube | None = None

    def __init__(self, uri: str) -> None:
        self._uri = uri.rstrip("/")
        self.title = f"runs in {self._uri.removeprefix('file://')}"
        self._is_run = bool(_text(self._uri))
        is_remote = uri.startswith("gs://")
        self._list = KeptFor(60.0 if is_remote else _AGE_S, self._read_all)

    def jobs(self) -> list[Manifest]:
        """Return a job for each run directory; one whose spec.yaml cannot be read is left out."""
        return self._list.value()

    def job(self, identity: str) -> Manifest:
        """Return the job of a run directory as it is now."""
        if identity not in self._names():
            raise MissingError(
                f"{identity!r} is not one of the {self.title}", "the list of jobs shows those that exist"
            )
        return self._read(identity)

    def events(self, job: Manifest) -> list[Manifest]:
        """Return nothing: without a cluster there are no events."""
        return []

    def _read_all(self) -> list[Manifest]:
        with ThreadPoolExecutor(_READERS) as readers:
            jobs = list(readers.map(self._read_or_none, self._names()))
        return [job for job in jobs if job is not None]

    def _read_or_none(self, name: str) -> Manifest | None:
        try:
            return self._read(name)
        except (InputError, MissingError, SpecError):
            return None

    def _read(self, name: str) -> Manifest:
        """Return the job under its folder's name, which is its own unless it was moved."""
        uri = self._uri if self._is_run else f"{self._uri}/{name}"
        text = _text(uri)
        if not text:
            raise MissingError(f"{uri}: not a run directory (it has no {SPEC})")
        job = local_run.with_status(_definition(text, f"{uri}/{SPEC}"), uri)
        return {**job, "metadata": {**(job.get("metadata") or {}), "name": name}}

    def _names(self) -> list[str]:
        if self._is_run:
            return [self._uri.rpartition("/")[2]]
        if self._uri.startswith("gs://"):
            return bucket.folders(self._uri)
        return sorted(spec.parent.name for spec in _path(self._uri).glob(f"*/{SPEC}"))


def runs_at(where: str) -> RunFolder:
    """Return the runs of --runs. Raises InputError if there is no such folder."""
    if where.startswith("gs://"):
        return RunFolder(where)
    if "://" in where and not where.startswith("file:///"):
        raise InputError(f"--runs: {where!r}; accepted: a folder here, file:///PATH or gs://BUCKET/PATH")
    path = _path(where) if where.startswith("file://") else Path(where).expanduser()
    if not path.is_dir():
        raise InputError(
            f"--runs: {where!r}: no such folder; accepted: a folder of run directories, or gs://BUCKET/PATH"
        )
    return RunFolder(f"file://{path.absolute()}")


def _path(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def _text(uri: str) -> str:
    if uri.startswith("gs://"):
        return bucket.newer(uri, SPEC, 0).decode("utf-8", "replace")
    try:
        return (_path(uri) / SPEC).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


class KeptFor:
    """A list that is made anew in the background once it is old; only one that is missing or very old is waited for."""

    def __init__(self, seconds: float, make: Callable[[], list[Manifest]]) -> None:
        self._seconds, self._make = seconds, make
        self._lock = threading.Lock()
        self._value: list[Manifest] = []
        self._made = float("-inf")
        self._error: Exception | None = None

    def value(self) -> list[Manifest]:
        """Return the list. Raises what making it raised last."""
        age = time.monotonic() - self._made
        if age > self._seconds + _PAUSE_S:
            with self._lock:
                if time.monotonic() - self._made > self._seconds + _PAUSE_S:
                    self._renew()
        elif age > self._seconds and self._lock.acquire(blocking=False):
            threading.Thread(target=self._renew_and_release, daemon=True).start()
        if self._error is not None:
            raise self._error
        return self._value

    def _renew(self) -> None:
        try:
            self._value, self._error = self._make(), None
        except Exception as error:  # raised to whoever asks next
            self._error = error
        self._made = time.monotonic()

    def _renew_and_release(self) -> None:
        try:
            self._renew()
        finally:
            self._lock.release()
