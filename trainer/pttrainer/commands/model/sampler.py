"""`python -m pttrainer sampler`: one sampler of a job whose samplers have pods of their own (`rollout.separate`).

It holds no state that the trainer could not send again, so it ends at once when it is told to, with an exit code that
is no success: a sampler serves until its job ends it. On a slice of several hosts each has such a process, which all
end with the first that does; process 0 alone speaks to the trainer.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ptapi.accelerators import Slice, compiler_flags
from ptapi.failures import ExitCode
from ptapi.spec import PostTrainJob
from pttrainer.commands import note
from pttrainer.commands.exit import exit_code_of
from pttrainer.errors import ConfigError
from pttrainer.runtime.distributed import processes
from pttrainer.training.job_file import read_job
from pttrainer.training.run_directory import run_files

if TYPE_CHECKING:
    from pttrainer.models.loading.model_loader import LoadedModel
    from pttrainer.rollout.disaggregated.separate.sampler_group.work import SamplerWork

PORT = 8477
T = TypeVar("T")


def add_to(commands: Any) -> None:
    """Add the verb's options."""
    parser = commands.add_parser("sampler", help="sample for a job whose samplers have processes of their own")
    parser.add_argument("--spec", type=Path, required=True, metavar="FILE", help="file that holds the PostTrainJob")
    parser.add_argument("--index", type=int, required=True, metavar="I", help="which of the job's samplers, from 0")
    parser.add_argument("--port", type=int, default=PORT, help=f"port to listen on; 0 picks a free one ({PORT})")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(ExitCode.PREEMPTED_SAVED))
    code = exit_code_of(lambda: run(options))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a compiler or a client's thread may still be at work, and nothing is left to save


def run(options: argparse.Namespace) -> None:
    """Serve until the trainer drains it, or sampling fails. Raises ConfigError."""
    job = read_job(options.spec)
    separate = job.spec.rollout.separate
    if separate is None:
        raise ConfigError("spec.rollout.placement: not separate: this job has no samplers of their own")
    if job.spec.rollout.sampling_engine != "native":
        raise ConfigError("spec.rollout.engine: vllm: this job's samplers are vLLM; hint: start them with `vllm serve`")
    if not 0 <= options.index < separate.replicas:
        raise ConfigError(f"--index: {options.index}: accepted: 0 to {separate.replicas - 1}, as many as the job has")
    if not 0 <= options.port <= 65535:
        raise ConfigError(f"--port: {options.port}: accepted: 0 to 65535")
    accelerator = (separate.accelerator or job.spec.accelerator).type
    processes.prepare_environment(accelerator, compiler_flags.of_job(job.spec))
    _serve(job, options.index, options.port)


def _serve(job: PostTrainJob, index: int, port: int) -> None:
    """Build the engine, without weights, and serve, or do as the process does that serves. Raises ConfigError."""
    from pttrainer.rollout.disaggregated.separate.client import TOKEN_ENV

    token = processes.secret(TOKEN_ENV, "spec.rollout.separate")
    processes.initialize()
    import jax

    from pttrainer.rollout.disaggregated.separate.remote_engine import shapes_digest
    from pttrainer.rollout.disaggregated.separate.sampler_group import follower
    from pttrainer.rollout.disaggregated.separate.sampler_group.leader import SamplerGroup
    from pttrainer.rollout.disaggregated.separate.sampler_server import LOST_S, SamplerServer
    from pttrainer.runtime.distributed import leader_messages

    parts, work = _work(job)
    others, rank = leader_messages.of_run(), jax.process_index()
    if others is not None and rank > 0:
        taken = _at_port(port, lambda: follower.serve_health(port))
        note(f"sampler {index}, process {rank}: port {taken}")
        follower.Follower(work, others, processes.coordinator_host(), token, _end_with).follow()
        return
    group = SamplerGroup(others, jax.process_count() - 1)
    server = _at_port(port, lambda: SamplerServer(work, token, shapes_digest(parts.model), port, group))

    def end() -> None:
        note(f"sampler {index}: another of its processes is gone")
        group.break_up(LOST_S)
        os._exit(ExitCode.PREEMPTED_SAVED)

    group.when_lost(end)
    group.greet(server.port)
    note(f"sampler {index}: port {server.port}")
    server.serve()


def _end_with(error: BaseException) -> None:
    """End this process, on any thread, with the code of its error."""

    def fail() -> None:
        raise error

    code = exit_code_of(fail)
    sys.stderr.flush()
    os._exit(code)


def _at_port(port: int, begin: Callable[[], T]) -> T:
    """Return what listens there. Raises ConfigError."""
    try:
        return begin()
    except OSError as error:
        raise ConfigError(f"--port: {port}: {error.strerror or error}; accepted: a free port") from error


def _work(job: PostTrainJob) -> "tuple[LoadedModel, SamplerWork]":
    """Return the model, and what this process does for the sampler. Raises ConfigError."""
    import jax

    from pttrainer.models.loading.model_loader import load_model
    from pttrainer.rollout.disaggregated import placement
    from pttrainer.rollout.disaggregated.separate.held_weights import HeldWeights
    from pttrainer.rollout.disaggregated.separate.sampler_group.work import SamplerWork
    from pttrainer.rollout.native.native_engine import NativeEngine
    from pttrainer.rollout.speculative import build
    from pttrainer.runtime.distributed import sharding

    spec = job.spec
    pinned = run_files.pinned_commits(run_files.open_run(job), job)
    parts = load_model(spec.model, spec.training, note, pinned)
    one = _chips(job)
    samplers = 1 if spec.rollout.separate is None else spec.rollout.separate.replicas
    mesh = sharding.make_mesh(placement.separate_sampler(parts.model, spec, one, samplers))
    engine = NativeEngine(
        parts.model,
        parts.tokenizer,
        partial(sharding.put, mesh),
        sharding.fetch,
        mesh,
        spec.rollout.slots,
        build.of_job(spec, parts.model, parts.tokenizer, mesh, mesh, note),
        delivered=True,
        keeps_prompts=spec.environment is not None,
    )
    several = jax.process_count() > 1
    agreed = processes.any_process if several else lambda flag: flag
    return parts, SamplerWork(engine, parts.tokenizer, HeldWeights(parts.model, mesh), agreed)


def _chips(job: PostTrainJob) -> Slice:
    """Return the chips of this sampler: of all its processes. Raises ConfigError."""
    import jax

    from pttrainer.rollout.disaggregated import placement

    slices = placement.sampler_slices(job.spec)
    assert slices is not None
    one, count = replace(slices, slices=1), jax.process_count()
    if one.is_cpu:  # by hand, a sampler on CPUs has as many processes as join
        return replace(one, slices=count)
    if count != one.vms:
        raise ConfigError(
            f"environment: JAX_NUM_PROCESSES: {count}: accepted: {one.vms}, one for each host of {one.describe()}"
        )
    return one
