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
from pttrainer.preflight.advice import out_of_memory
from pttrainer.runtime.distributed import processes
from pttrainer.runtime.reporting import termination
from pttrainer.runtime.reporting.termination import Attempt, StopRequest
from pttrainer.training import run_files
from pttrainer.training.job_file import read_job


def run_job(path: Path) -> ExitCode:
    """Runs the job in a file to its end, or until it is asked to stop."""
    stop = StopRequest()
    stop.listen()
    termination.quiet_background_threads()
    attempt = Attempt()
    job: PostTrainJob | None = None
    try:
        job = read_job(path)
        processes.prepare_environment(job.spec.accelerator.type)
        place = attempt.place = run_files.open_run(job)
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
