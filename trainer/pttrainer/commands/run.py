"""From a job file to an exit code: the frame around the loop.

Reads and checks the job before jax is imported, because the number of virtual devices must be known by then, and a
wrong job should be refused at once. Every way to end passes through here once.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ptapi.accelerators import compiler_flags, fewer_slices
from ptapi.failures import ExitCode
from ptapi.spec import PostTrainJob
from pttrainer.errors import ConfigError, OutputConflict
from pttrainer.preflight.advice import out_of_memory
from pttrainer.preflight.memory import recomputation
from pttrainer.runtime.distributed import processes
from pttrainer.runtime.io.place import Place
from pttrainer.runtime.reporting import termination
from pttrainer.runtime.reporting.termination import Attempt, StopRequest
from pttrainer.runtime.slices import supervise, trainer_process
from pttrainer.training.job_file import read_job
from pttrainer.training.run_directory import lease_holder, resume_check, run_files
from pttrainer.training.run_directory.latest_step import run_progress


def run_job(path: Path, *, is_fresh: bool = False) -> ExitCode:
    """Run the job in a file to its end, or until it is asked to stop.

    is_fresh: start from the first step, and move away what its run directory holds.
    """
    trainer_process.end_with_supervisor()
    stop = StopRequest()
    stop.listen()
    termination.quiet_background_threads()
    attempt = Attempt()
    code = _run(path, attempt, stop, is_fresh=is_fresh)
    if code != ExitCode.STORAGE:  # a full bucket accepts no write; give its clients' threads no time for tracebacks
        attempt.release()
    return code


def _run(path: Path, attempt: Attempt, stop: StopRequest, *, is_fresh: bool) -> ExitCode:
    job: PostTrainJob | None = None
    try:
        job = read_job(path)
        member = processes.slice_member()
        if fewer_slices.is_supervised(job.spec) and member is not None:
            return supervise.run(job, path, member, stop)
        processes.prepare_environment(job.spec.accelerator.type, compiler_flags.of_job(job.spec))
        place = run_files.open_run(job)
        if is_fresh:
            _set_aside(place)
        resume_check.compare(job, place)
        remat = recomputation.policy(job.spec)
        with _importing():
            from pttrainer.training.loop import train
        train(job, place, attempt, stop, remat)
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
    at = run_progress(place)
    if processes.processes() > 1:
        raise ConfigError("--fresh: this run has several processes; accepted: one; hint: move its directory manually")
    if writer := lease_holder.current_writer(place):
        raise OutputConflict(
            f"--fresh: {place.uri}: {writer} writes there; accepted: a run without a writer; hint: wait until it "
            "ends, or stop it"
        )
    if at is not None:
        kept = run_files.set_aside(place, at.step)
        print(f"starting over; the previous run, at step {at.step}, is kept as {kept}", file=sys.stderr)


@contextmanager
def _importing() -> Iterator[None]:
    """Disable garbage collection during imports.

    Modules create many objects and no garbage: scanning them again and again takes a quarter of the import time,
    and some of the tracing time later.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
