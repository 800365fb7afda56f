"""Run the trainer as a child process: write its job file, forward Ctrl-C, map its exit code."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from importlib.util import find_spec
from pathlib import Path

from ptapi.accelerators import resolve
from ptapi.load import dump_job
from ptapi.spec import PostTrainJob
from ptctl.errors import FAILED, INTERRUPTED, CliError
from ptctl.ui.app import App

_TRAINER = "pttrainer"


def run_trainer(app: App, job: PostTrainJob, verb: str = "run", *options: str) -> int:
    """Run the job (or another subcommand of the trainer on it) to its end and return the shell's exit code."""
    code = trainer_code(job, verb, *options)
    if code and code != INTERRUPTED:
        app.console.say(f"the trainer exited with code {code}")
        return FAILED
    return code


def trainer_code(job: PostTrainJob, verb: str, *options: str, forked: bool = False) -> int:
    """Return the trainer's own exit code, or INTERRUPTED.

    forked: for a subcommand that needs no JAX and finishes sooner than a new Python starts: it runs in a fork of this
    process, which has already imported most of what it needs.
    """
    if not forked and find_spec("jax") is None:
        raise CliError("the trainer needs JAX, which is not installed", "pip install 'posttrain[trainer-cpu]'")
    with tempfile.TemporaryDirectory(prefix="ptctl-train-") as directory:
        path = Path(directory) / "job.yaml"
        path.write_text(dump_job(job))
        args, environment = [verb, str(path), *options], _trainer_environment(job)
        code = _run_forked(args, environment) if forked else _run_child(args, environment)
    return INTERRUPTED if code in (-signal.SIGINT, 128 + signal.SIGINT) else code


def _trainer_environment(job: PostTrainJob) -> dict[str, str]:
    """Return the environment that the operator's pod would have: on a laptop, `cpu-8` is eight device_env devices."""
    spec = job.spec
    accelerator = resolve(spec.accelerator.type, spec.accelerator.topology, spec.accelerator.slices)
    user_env = {entry.name: entry.value for entry in spec.env if entry.value is not None}
    device_env = {}
    if accelerator.is_cpu:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={accelerator.total_devices}"
        device_env = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags.strip()}
    return {**os.environ, **device_env, **user_env}


def _run_child(args: list[str], environment: dict[str, str]) -> int:
    """Run the trainer as a child. It gets Ctrl-C from the terminal and SIGTERM from us, and saves before it exits."""
    child = subprocess.Popen([sys.executable, "-m", _TRAINER, *args], env=environment)
    previous_handler = signal.signal(signal.SIGTERM, lambda number, frame: child.terminate())
    try:
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:
                continue
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


def _run_forked(args: list[str], environment: dict[str, str]) -> int:
    """Run the trainer like `python -m`, in a fork, without starting Python."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os._exit(_run_main(args, environment))
    while True:
        try:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        except KeyboardInterrupt:
            continue


def _run_main(args: list[str], environment: dict[str, str]) -> int:
    """Run the trainer's command line in this process and return its exit code."""
    os.environ.update(environment)
    sys.argv = [_TRAINER, *args]
    code: object = 1
    try:
        runpy.run_module(_TRAINER, run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)
