"""`python -m pttrainer sampler`: one sampler of a job whose samplers have pods of their own (`rollout.separate`).

It holds no state that the trainer could not send again, so it ends at once when it is told to, with an exit code that
is no success: a sampler serves until its job ends it.
"""

import argparse
import os
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptapi.accelerators import compiler_flags
from ptapi.failures import ExitCode
from ptapi.spec import PostTrainJob
from pttrainer.commands import note
from pttrainer.commands.exit import exit_code_of
from pttrainer.errors import ConfigError
from pttrainer.runtime.distributed import processes
from pttrainer.training.job_file import read_job
from pttrainer.training.run_directory import run_files

if TYPE_CHECKING:
    from pttrainer.rollout.disaggregated.separate.sampler_server import SamplerServer

PORT = 8477


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
    server = _server(job, options.port)
    note(f"sampler {options.index}: port {server.port}")
    server.serve()


def _server(job: PostTrainJob, port: int) -> "SamplerServer":
    """Build the engine, without weights, and the server. Raises ConfigError."""
    from pttrainer.rollout.disaggregated.separate.client import TOKEN_ENV

    token = processes.secret(TOKEN_ENV, "spec.rollout.separate")
    processes.initialize()
    import jax

    from pttrainer.models.loading.model_loader import load_model
    from pttrainer.rollout.disaggregated import placement
    from pttrainer.rollout.disaggregated.separate.held_weights import HeldWeights
    from pttrainer.rollout.disaggregated.separate.remote_engine import shapes_digest
    from pttrainer.rollout.disaggregated.separate.sampler_server import SamplerServer
    from pttrainer.rollout.native.native_engine import NativeEngine
    from pttrainer.rollout.speculative import build
    from pttrainer.runtime.distributed import sharding

    spec = job.spec
    pinned = run_files.pinned_commits(run_files.open_run(job), job)
    parts = load_model(spec.model, spec.training, note, pinned)
    slices = placement.sampler_slices(spec)
    assert slices is not None
    one = replace(slices, slices=1)
    mesh = sharding.make_mesh(placement.for_decoding(parts.model, one, placement.copies(spec)))
    engine = NativeEngine(
        parts.model,
        parts.tokenizer,
        partial(sharding.put, mesh),
        jax.device_get,
        mesh,
        spec.rollout.slots,
        build.of_job(spec, parts.model, parts.tokenizer, mesh, mesh, note),
        delivered=True,
        keeps_prompts=spec.environment is not None,
    )
    weights = HeldWeights(parts.model, mesh)
    try:
        return SamplerServer(engine, parts.tokenizer, weights, token, shapes_digest(parts.model), port)
    except OSError as error:
        raise ConfigError(f"--port: {port}: {error.strerror or error}; accepted: a free port") from error
