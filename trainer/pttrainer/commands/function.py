"""`python -m pttrainer function job.yaml`: call the Python function of `spec.runtime.function`.

Every process calls it once; they are joined before, so that jax.devices() has the devices of all. What process 0
returns, or what any process raises, goes to the run directory under the job's uid, where `posttrain.Run.value` reads
it. A process that is stopped calls the function again when the job restarts. Left out: progress, checkpoints and a
lease; a function that wants to go on where it stopped writes its own files below POSTTRAIN_RUN_DIRECTORY.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from ptapi import pickled, run_directory
from ptapi.failures import ExitCode
from ptapi.spec import FunctionRuntime, PostTrainJob
from pttrainer.errors import ConfigError, DataError, TrainerError, UserCodeError
from pttrainer.runtime.distributed import processes
from pttrainer.runtime.io import requirements, storage
from pttrainer.runtime.io.local_copy import local_copy
from pttrainer.runtime.io.place import Place
from pttrainer.runtime.reporting import termination
from pttrainer.runtime.reporting.termination import Attempt
from pttrainer.sandbox import user_code
from pttrainer.training.job_file import read_any_job

FIELD = "spec.runtime.function"


def add_to(commands: Any) -> None:
    """Add the verb's options."""
    parser = commands.add_parser("function", help="call the function of a job", description=__doc__)
    parser.add_argument("job", type=Path, help="file that holds a PostTrainJob with runtime.function")
    parser.set_defaults(run=lambda options: run(options))


def run(options: argparse.Namespace) -> ExitCode:
    """Call the job's function, keep what it returns or raises, and return the exit code."""
    signal.signal(signal.SIGTERM, _stop)
    attempt = Attempt()
    try:
        job = read_any_job(options.job)
        if job.spec.runtime.function is None:
            raise ConfigError("spec.runtime.function: (missing): accepted: a Python function")
        place = storage.place(run_directory.run_uri(job.spec.output.uri, job.metadata.name))
        _run(job, job.spec.runtime.function, place, attempt)
    except BaseException as error:
        code = termination.exit_code(error)
        termination.show(error, code)
        termination.report(code, termination.describe(error), attempt)
        return code
    termination.report(ExitCode.OK, "done", attempt)
    return ExitCode.OK


def _run(job: PostTrainJob, runtime: FunctionRuntime, place: Place, attempt: Attempt) -> None:
    """Call the function. Raises what ends the job."""
    rank = processes.process_id(os.environ) if processes.processes() > 1 else 0
    attempt.place = place if rank == 0 else None
    name = run_directory.returned(job.metadata.uid or "", rank)
    place.remove(name)  # of an earlier attempt
    processes.prepare_environment(job.spec.accelerator.type, {})
    kept = storage.place(f"{job.spec.output.uri.rstrip('/')}/{run_directory.REQUIREMENTS}")
    requirements.make_importable(runtime.requirements, kept, f"{FIELD}.requirements")
    function = _load(runtime)
    args, kwargs = _arguments(runtime)
    if processes.processes() > 1 or processes.is_pathways():
        processes.initialize()
    try:
        value = function(*args, **kwargs)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
    except BaseException as error:
        _keep(place, name, _raised(error))
        raise _end_of(error, runtime.function) from error
    if rank == 0:
        _keep_value(place, name, value, runtime.function)


def _load(runtime: FunctionRuntime) -> Callable[..., Any]:
    try:
        return user_code.load(local_copy(FIELD, runtime), runtime.function)
    except user_code.RewardCodeError as error:
        raise UserCodeError(f"{FIELD}: {error}") from error


def _arguments(runtime: FunctionRuntime) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if runtime.arguments is None:
        return (), {}
    field = f"{FIELD}.arguments"
    scheme, path = storage.split(runtime.arguments)
    try:
        if scheme == "file":
            args, kwargs = pickled.load(Path(path))
        else:
            args, kwargs = pickled.loads(bytearray(storage.read_file(runtime.arguments, field)))
    except (OSError, pickled.NotLoadable) as error:
        raise DataError(f"{field}: {runtime.arguments}: cannot be read: {error}") from error
    return args, kwargs


def _raised(error: BaseException) -> dict[str, Any]:
    """Return an exception as the caller gets it, with the lines of the user's own frames."""
    trace = error.__traceback__.tb_next if error.__traceback__ else None
    text = "".join(traceback.format_exception(type(error), error, trace))
    print(text, file=sys.stderr, end="", flush=True)
    error.__traceback__ = None
    try:
        pickled.dumps(error)
    except Exception:  # an exception of the user's may hold anything
        return {"traceback": text}
    return {"error": error, "traceback": text}


def _end_of(error: BaseException, function: str) -> TrainerError:
    """Return what ends the job: memory and storage have classes of their own, everything else is the user's code."""
    end = UserCodeError(f"{function}: {type(error).__name__}: {str(error).strip() or 'no message'}")
    code = termination.exit_code(error)
    end.exit_code = ExitCode.USER_CODE if code == ExitCode.UNKNOWN else code
    return end


def _keep_value(place: Place, name: str, value: Any, function: str) -> None:
    try:
        _keep(place, name, {"value": value})
    except TrainerError:
        raise
    except Exception as error:
        raise UserCodeError(
            f"{function}: returned a {type(value).__name__}, which cannot travel: {error}; accepted: what cloudpickle "
            "takes; hint: return arrays, numbers or text, or write a file and return its path"
        ) from error


def _keep(place: Place, name: str, outcome: dict[str, Any]) -> None:
    with tempfile.NamedTemporaryFile(prefix="posttrain-returned-") as file:
        file.writelines(pickled.dumps(outcome))
        file.flush()
        place.upload(name, Path(file.name))


def _stop(number: int, _: FrameType | None) -> None:
    """End at once: the function is called again when the job restarts."""
    message = f"stopped by {signal.Signals(number).name}; the function is called again after a restart"
    print(message, file=sys.stderr, flush=True)
    termination.report(ExitCode.PREEMPTED_SAVED, message, Attempt())
    sys.stdout.flush()
    os._exit(ExitCode.PREEMPTED_SAVED)
