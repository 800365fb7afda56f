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

from ptapi.failures import ExitCode
from ptapi.spec import PostTrainJob
from pttrainer.errors import ConfigError, OutputConflict
from pttrainer.preflight.advice import out_of_memory
from pttrainer.runtime.distributed import processes
from pttrainer.runtime.io.storage import Place
from pttrainer.runtime.reporting import termination
from pttrainer.runtime.reporting.termination import Attempt, StopRequest
from pttrainer.training.job_file import read_job
from pttrainer.training.run_directory import lease_holder, resume_check, run_files
from pttrainer.training.run_directory.latest_step import reached


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
        processes.prepare_environment(job.spec.accelerator.type)
        place = run_files.open_run(job)
        if is_fresh:
            _set_aside(place)
        resume_check.compare(job, place)
        with _importing():
            from pttrainer.training.loop import train
        train(job, place, attempt, stop)
    except BaseException as error:
        code = termination.exit_code(error)
        termination.show(error, code)
        message = termination.describe(error)
        if code == ExitCode.OUT_OF_MEMORY_HBM and job is not None:
            message = out_of_memory.explain(error, job)
            print(f"error: {message}", file=sys.stderr)
        termination.report(code, message, attempt)
        return code
    termination.report(ExitCode.OK, "done", attempt)
    return ExitCode.OK


def _set_aside(place: Place) -> None:
    at = reached(place)
    if processes.processes() > 1:
        raise ConfigError("--fresh: this run has several processes; accepted: one; hint: move its directory yourself")
    if writer := lease_holder.of_place(place):
        raise OutputConflict(
            f"--fresh: {place.uri}: {writer} writes there; accepted: a run that nobody writes; hint: wait for its end, "
            "or end it"
        )
    if at is not None:
        kept = run_files.set_aside(place, at.step)
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
