"""From a job file to an exit code: the frame around the loop.

Reads and checks the job before jax is imported, because the number of virtual devices must be known by then,
and a wrong job should be refused in a blink. Every way to end passes through here once.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ptapi import load
from ptapi.errors import SpecError
from ptapi.failures import ExitCode
from ptapi.spec import PostTrainJob
from pttrainer import directory, distributed, holder, outofmemory, resumption, termination
from pttrainer.algorithms import MODULES
from pttrainer.errors import ConfigError, OutputConflict
from pttrainer.reached import reached
from pttrainer.storage import Place
from pttrainer.termination import Attempt, StopRequest


def run_job(path: Path, *, is_fresh: bool = False) -> ExitCode:
    """Runs the job in a file to its end, or until it is asked to stop. is_fresh: from its first step, and what its run
    directory holds is set aside."""
    stop = StopRequest()
    stop.listen()
    termination.quiet_background_threads()
    attempt = Attempt()
    code = _run(path, attempt, stop, is_fresh=is_fresh)
    if code != ExitCode.STORAGE:  # a full bucket takes no word; its clients' threads should not get the time for theirs
        attempt.release()
    return code


def _run(path: Path, attempt: Attempt, stop: StopRequest, *, is_fresh: bool) -> ExitCode:
    job: PostTrainJob | None = None
    try:
        job = read_job(path)
        distributed.prepare_environment(job.spec.accelerator.type)
        place = directory.open_run(job)
        if is_fresh:
            _set_aside(place)
        resumption.compare(job, place)
        with _importing():
            from pttrainer.loop import train
        train(job, place, attempt, stop)
    except BaseException as error:
        code = termination.exit_code(error)
        termination.show(error, code)
        message = termination.describe(error)
        if code == ExitCode.OUT_OF_MEMORY_HBM and job is not None:
            message = outofmemory.explain(error, job)
            print(f"error: {message}", file=sys.stderr)
        termination.report(code, message, attempt)
        return code
    termination.report(ExitCode.OK, "done", attempt)
    return ExitCode.OK


def _set_aside(place: Place) -> None:
    at = reached(place)
    if distributed.processes() > 1:
        raise ConfigError("--fresh: this run has several processes; accepted: one; hint: move its directory yourself")
    if writer := holder.of_place(place):
        raise OutputConflict(
            f"--fresh: {place.uri}: {writer} writes there; accepted: a run that nobody writes; hint: wait for its end, "
            "or end it"
        )
    if at is not None:
        kept = directory.set_aside(place, at.step)
        print(f"starting over; the run that had come to step {at.step} is kept as {kept}", file=sys.stderr)


@contextmanager
def _importing() -> Iterator[None]:
    """Modules make many objects, and no garbage: to look through them again and again takes a quarter of the time that
    an import does, and a part of what is traced later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def read_job(path: Path) -> PostTrainJob:
    """The job, checked; raises ConfigError with every finding."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error
    return check_job(text)


def check_job(text: str) -> PostTrainJob:
    """As `read_job`, of a file's text."""
    try:
        job = load.load_job(text)
    except SpecError as error:
        raise ConfigError(str(error)) from error
    if not job.spec.runtime.is_native:
        raise ConfigError("spec.runtime: not native: posttrain's trainer does not run it; hint: start its own command")
    if job.spec.algorithm.kind not in MODULES:
        accepted = ", ".join(MODULES)
        raise ConfigError(f"spec.algorithm: {job.spec.algorithm.kind}: not supported yet; accepted: {accepted}")
    return job
