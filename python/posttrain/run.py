"""A job's run: state, waiting, logs, metrics, samples, result, and its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from posttrain import notebook_card
from posttrain.errors import Error, JobFailed, NotFound, TimedOut, translated
from posttrain.result import Result, succeeded
from posttrain.rows import Row, Rows
from ptapi.run_directory import EXPORT, METRICS
from ptapi.run_directory import returned as returned_name
from ptctl.jobs.view import JobView, view
from ptctl.runs.storage import directory
from ptkube.errors import NotFound as MissingObject
from ptkube.resources import POSTTRAINJOBS, Manifest

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from ptkube.client import Kube


class Run:
    """One job of a cluster, by name and uid: a job that was made anew under the name is another run."""

    def __init__(self, kube: Kube, job: Manifest) -> None:
        self._kube = kube
        self._job = view(job)

    @property
    def name(self) -> str:
        """Return the job's name."""
        return self._job.name

    @property
    def namespace(self) -> str:
        """Return the job's namespace."""
        return self._job.namespace

    @property
    def uid(self) -> str:
        """Return what the API server told this job apart by."""
        return self._job.uid

    @property
    def path(self) -> str:
        """Return the URI of the run directory."""
        return self._job.run_uri

    @property
    def status(self) -> JobView:
        """Return the job's state now: phase, step, total, loss, reward, failure and more. Raises NotFound."""
        with translated():
            try:
                job = view(self._kube.get(POSTTRAINJOBS, self.name, self.namespace))
            except MissingObject as error:
                raise NotFound(f"job {self.name!r} does not exist any more in namespace {self.namespace!r}") from error
        if job.uid != self.uid:
            raise NotFound(
                f"job {self.name!r} was deleted, and another one has its name", "client.get returns the new one"
            )
        self._job = job
        return job

    def wait(self, timeout: float | None = None, on_change: Callable[[JobView], object] | None = None) -> JobView:
        """Return when the job has succeeded; follow it by a watch, and call `on_change` with each new state.

        Raises JobFailed with class, message and hint; TimedOut after `timeout` seconds; NotFound if it is deleted.
        """
        from ptctl.jobs.waiting import states

        deadline = None if timeout is None else time.monotonic() + timeout
        state = self.status
        with translated():
            for changed in _from(state, states(self._kube, state, deadline)):
                if changed is None or changed.uid != self.uid:
                    raise NotFound(f"job {self.name!r} was deleted during the wait")
                self._job = state = changed
                if on_change is not None:
                    on_change(state)
                if state.is_terminal:
                    return succeeded(state)
        raise TimedOut(
            f"job {self.name!r} is {state.phase}, step {state.progress or 'none'}, after {timeout:g} s",
            f"`ptctl workload describe {self.name} -n {self.namespace}` shows what it waits for",
        )

    async def wait_async(
        self, timeout: float | None = None, on_change: Callable[[JobView], object] | None = None
    ) -> JobView:
        """Wait as `wait` does, in a thread with a connection of its own; a cancelled await ends both.

        `on_change` is called in that thread.
        """
        import asyncio

        from ptkube.client import Kube

        kube = Kube(self._kube.access)
        try:
            return await asyncio.to_thread(Run(kube, self._job.raw).wait, timeout, on_change)
        finally:
            kube.close()

    def logs(
        self, follow: bool = False, *, rank: int | None = None, tail: int | None = None, poll_s: float = 1.0
    ) -> Iterator[str]:
        """Yield the trainer's lines; with `follow` as they are written, through restarts, until the job ends.

        poll_s: how often to look for new pods and for the end.
        """
        from ptctl.runs.logs.log_stream import Limits, followed, written

        job, limits = self.status, Limits(rank=rank, tail=tail)
        with translated():
            entries = followed(self._kube, job, limits, poll_s) if follow else written(self._kube, job, limits)
            for entry in entries:
                if not entry.is_note:
                    yield entry.text

    def metrics(self) -> Rows:
        """Return a row for each step: `step`, `time`, `loss` and the others. Empty before the first step."""
        return self._metrics(self.status)

    def samples(self, step: int | None = None) -> Rows:
        """Return prompts, completions and rewards of a step (None: the newest). Raises NotFound if there are none."""
        pattern = f"samples/step-{'*' if step is None else f'{step:08d}'}.jsonl"
        with translated(), self._directory(self.status, pattern, newest=1) as path:
            chosen, rows = directory.samples(path, step)
        return Rows({"step": chosen, **row} for row in rows)

    def result(self) -> Result:
        """Return where the trained model is and how it was evaluated. Raises JobFailed, or Error before the end."""
        job = self.status
        if not job.is_terminal:
            raise Error(f"job {self.name!r} has no result yet: it is {job.phase}", "run.wait() returns when it has")
        succeeded(job)
        form = (job.raw["spec"].get("export") or {}).get("format", "safetensors")
        export = f"{self.path}/{EXPORT}"
        return Result(
            path=self.path,
            model=export if form == "safetensors" else None,
            adapters=export if form == "peft" else None,
            metrics=lambda: self._metrics(job),  # also after the job is deleted
        )

    def value(self, timeout: float | None = None) -> Any:
        """Return what the function of a job of `posttrain.remote` returned; wait for it first.

        Raises what the function raised, with its traceback there as the cause; else as `wait` does.
        """
        from posttrain import function_result

        try:
            job = self.wait(timeout)
        except JobFailed as failure:
            raise self._raised(failure)  # noqa: B904 - its cause is the traceback there
        with self._returned(job) as files:
            return function_result.value(files, self.name)

    def _raised(self, failure: JobFailed) -> BaseException:
        """Return what the function raised; the failure of the job where it raised nothing, or that cannot be read."""
        from posttrain import function_result

        try:
            with self._returned(self._job) as files:
                return function_result.exception(files, failure)
        except Error:
            return failure

    def cancel(self) -> None:
        """Save a checkpoint, stop the pods and give back the chips; the job stays, and `resume` goes on with it."""
        self._suspend(True)

    def resume(self) -> None:
        """Go on with a job that was cancelled or suspended."""
        self._suspend(False)

    def delete(self, timeout: float | None = None) -> None:
        """Delete the job and keep its run directory; with `timeout`, return when its pods are gone or raise."""
        from ptctl.jobs.deletion import request_deletion, wait_until_deleted

        with translated():
            request_deletion(self._kube, self._job)
            if timeout is not None:
                wait_until_deleted(self._kube, [self._job], timeout)

    def __repr__(self) -> str:
        job = self._job
        return " ".join(filter(None, (f"<Run {job.name}: {job.algorithm}, {job.phase}", job.progress))) + ">"

    def _repr_html_(self) -> str:
        """Return the card that a notebook shows: the state now, and what of the run directory is on this machine."""
        try:
            job, note = self.status, ""
        except Error as error:
            job, note = self._job, str(error)
        return notebook_card.run_card(job, Rows(_local_metrics(job)), directory.newest_sample(job.run_uri), note)

    def _suspend(self, suspend: bool) -> None:
        from ptctl.jobs.suspension import write_suspend

        job = self.status
        with translated():
            write_suspend(self._kube, job, suspend=suspend)

    def _metrics(self, job: JobView) -> Rows:
        with translated(), self._directory(job, METRICS) as path:
            return Rows(directory.metrics(path))

    @contextmanager
    def _returned(self, job: JobView) -> Iterator[list[Path]]:
        pattern = returned_name(job.uid, "*")
        with translated(), self._directory(job, pattern) as path:
            yield sorted(path.glob(pattern))

    def _directory(self, job: JobView, pattern: str, newest: int | None = None) -> AbstractContextManager[Path]:
        from ptctl.runs.storage import claim
        from ptctl.ui.app import App, Target

        app = App(connect=lambda target: self._kube)
        return claim.run_directory(app, Target(self.namespace), job, pattern, newest or claim.ALL)


class Runs(list[Run]):
    """Runs of a cluster, one line each."""

    def __repr__(self) -> str:
        return "[" + ",\n ".join(map(repr, self)) + "]"

    def _repr_html_(self) -> str:
        return notebook_card.run_table([run._job for run in self])


def _local_metrics(job: JobView) -> list[Row]:
    """Return the metrics of a run directory on this machine; none of another, which a picture is not worth reading."""
    is_local = job.run_uri.startswith("file://")
    return directory.metrics(directory.local_path(job.run_uri, METRICS)) if is_local else []


def _from(state: JobView, changes: Iterator[JobView | None]) -> Iterator[JobView | None]:
    """Yield the state, then those that differ from it; the watch begins with one that is known."""
    yield state
    for changed in changes:
        if changed is None or changed.raw != state.raw:
            yield changed
        state = changed or state
