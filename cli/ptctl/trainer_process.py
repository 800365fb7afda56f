"""Run the trainer as a child process: write its job file, pass signals on, map its exit code."""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from ptapi.accelerators import resolve
from ptapi.load import dump_job
from ptapi.spec import PostTrainJob
from ptctl import trainer_child
from ptctl.errors import BROKEN_PIPE, FAILED, INTERRUPTED, OK, CliError
from ptctl.ui import interrupts
from ptctl.ui.app import App

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_OWN_CODES = (OK, INTERRUPTED, BROKEN_PIPE)
"""Exit codes of the trainer that are ptctl's, too."""
_SAVING = "Interrupted. The trainer saves a checkpoint and ends; Ctrl-C again ends it at once."


def run_trainer(
    app: App, job: PostTrainJob, verb: str = "run", *options: str, on_start: Callable[[], None] = lambda: None
) -> int:
    """Run the job (or another subcommand of the trainer on it) to its end and return the shell's exit code."""
    code = trainer_code(job, verb, *options, on_start=on_start)
    if code not in _OWN_CODES:
        app.console.say(f"the trainer exited with code {code}")
        return FAILED
    return code


def trainer_code(
    job: PostTrainJob, verb: str, *options: str, forked: bool = False, on_start: Callable[[], None] = lambda: None
) -> int:
    """Return the trainer's own exit code, or INTERRUPTED.

    on_start is called when the trainer runs: threads are started there, because a process with threads must not fork.
    forked: for a subcommand that needs no JAX and finishes sooner than a new Python starts: it runs in a fork of this
    process, which has already imported most of what it needs.
    """
    if not forked:
        _check_jax()
    with interrupts.handled(interrupts.raise_once), tempfile.TemporaryDirectory(prefix="ptctl-train-") as directory:
        path = Path(directory) / "job.yaml"
        path.write_text(dump_job(job))
        return _run_child([verb, str(path), *options], _trainer_environment(job), on_start, forked=forked)


def run_verb(verb: str, *options: str) -> int:
    """Run a subcommand of the trainer that takes no job, on the devices that are here; return the shell's exit code."""
    _check_jax()
    with interrupts.handled(interrupts.raise_once):
        code = _run_child([verb, *options], dict(os.environ), lambda: None, forked=False)
    return code if code in _OWN_CODES else FAILED  # the trainer has printed why


def _check_jax() -> None:
    if find_spec("jax") is None:
        raise CliError("the trainer needs JAX, which is not installed", "pip install 'posttrain[trainer-cpu]'")


def _trainer_environment(job: PostTrainJob) -> dict[str, str]:
    """Return the environment that the operator's pod would have: on a laptop, `cpu-8` is eight virtual devices."""
    spec = job.spec
    accelerator = resolve(spec.accelerator.type, spec.accelerator.topology, spec.accelerator.slices)
    user_env = {entry.name: entry.value for entry in spec.env if entry.value is not None}
    device_env = {}
    if accelerator.is_cpu:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={accelerator.total_devices}"
        device_env = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags.strip()}
    return {**os.environ, **device_env, **user_env}


def _run_child(args: list[str], environment: dict[str, str], on_start: Callable[[], None], *, forked: bool) -> int:
    """Run the trainer as a child. It gets SIGTERM for Ctrl-C and SIGTERM of ours, SIGKILL for a second Ctrl-C."""
    interrupts_received: list[int] = []

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        interrupts_received.append(number)
        interrupts.say(_SAVING if args[0] == "run" and len(interrupts_received) == 1 else "Interrupted.")
        send(signal.SIGTERM if len(interrupts_received) == 1 else signal.SIGKILL)

    def send(number: int) -> None:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(child, number)

    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until there are both a child and handlers
    child, pipe = _start(args, environment, forked=forked)
    with interrupts.handled(on_interrupt), interrupts.handled(lambda number, frame: send(number), signal.SIGTERM):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        on_start()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(pipe)
    return INTERRUPTED if interrupts_received and code else code


def _start(args: list[str], environment: dict[str, str], *, forked: bool) -> tuple[int, int]:
    """Return the child's process id, and the end of a pipe whose closing ends the child."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    gc.freeze()  # what both have is neither copied nor walked by a collection of the child or at our end
    child = os.fork()
    if child:
        os.close(reader)
        return child, writer
    try:
        os.close(writer)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; until the trainer listens, we decide
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        if forked:
            os.environ.update(environment)
            os._exit(trainer_child.run(reader, args))
        os.set_inheritable(reader, True)
        os.execve(sys.executable, [sys.executable, "-m", trainer_child.__name__, str(reader), *args], environment)
    finally:
        os._exit(FAILED)
