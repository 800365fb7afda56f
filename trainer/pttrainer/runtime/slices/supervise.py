"""What a container of a job with `accelerator.minSlices` runs: the supervisor, until the run ends."""

import os
import sys
import time
from functools import partial
from pathlib import Path

from ptapi.accelerators import fewer_slices
from ptapi.failures import ExitCode
from ptapi.run_directory import Generation, run_uri
from ptapi.spec import PostTrainJob
from pttrainer.runtime.distributed import processes
from pttrainer.runtime.distributed.processes import SliceMember
from pttrainer.runtime.io import storage
from pttrainer.runtime.reporting import termination
from pttrainer.runtime.reporting.termination import Attempt, StopRequest
from pttrainer.runtime.slices import trainer_process
from pttrainer.runtime.slices.next_generation import Limits
from pttrainer.runtime.slices.supervisor import Supervisor
from pttrainer.runtime.slices.trainer_process import TrainerProcess

POLL_S = 0.2


def run(job: PostTrainJob, path: Path, member: SliceMember, stop: StopRequest) -> ExitCode:
    """Supervise the trainer of this process until the run ends; return the exit code. Raises ConfigError."""
    supervisor = Supervisor(
        storage.place(run_uri(job.spec.output.uri, job.metadata.name)),
        (member.slice_index, member.process),
        member.address,
        limits(job, member.per_slice),
        partial(_start, path, member.slice_index),
        processes.lease_limit_s(),
        processes.slice_patience_s(),
        time.monotonic(),
        trainer_process.message,
    )
    while True:
        if stop.signal is not None:
            supervisor.leave()
        code = supervisor.step(time.monotonic())
        if code is not None:
            break
        time.sleep(POLL_S)
    print(f"supervisor: {supervisor.verdict}", file=sys.stderr, flush=True)
    if code not in (ExitCode.OK, ExitCode.PREEMPTED_SAVED):  # else the trainer has said it
        termination.report(ExitCode(code), supervisor.verdict, Attempt())
    return ExitCode(code)


def limits(job: PostTrainJob, per_slice: int) -> Limits:
    """Return what the job allows."""
    accelerator = job.spec.accelerator
    return Limits(
        job_uid=job.metadata.uid or "",
        slices=accelerator.slices,
        minimum=accelerator.min_slices or accelerator.slices,
        usable=fewer_slices.usable_counts(job.spec),
        per_slice=per_slice,
        max_restarts=job.spec.run_policy.max_restarts,
    )


def _start(path: Path, own_slice: int, generation: Generation, rank: int) -> TrainerProcess:
    trainer_process.clear_message()
    return trainer_process.start(path, trainer_process.environment(generation, rank, own_slice, os.environ))
