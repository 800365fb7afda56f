"""Running the trainer as a child: a job file for it, Ctrl-C for it, its exit code for us."""

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
    """Run the job to its end, or another verb of the trainer on it; the exit code for the shell."""
    code = trainer_code(job, verb, *options)
    if code and code != INTERRUPTED:
        app.console.say(f"the trainer ended with exit code {code}")
        return FAILED
    return code


def trainer_code(job: PostTrainJob, verb: str, *options: str, forked: bool = False) -> int:
    """The trainer's own exit code, or INTERRUPTED.

    forked: for a verb that needs no JAX and is done sooner than a new Python has started: its command line runs in a
    fork of this process, which has imported most of what it needs.
    """
    if not forked and find_spec("jax") is None:
        raise CliError("the trainer needs JAX, which is not installed", "pip install 'posttrain[trainer-cpu]'")
    with tempfile.TemporaryDirectory(prefix="ptctl-train-") as folder:
        path = Path(folder) / "job.yaml"
        path.write_text(dump_job(job))
        words, environment = [verb, str(path), *options], _environment(job)
        code = _forked(words, environment) if forked else _run(words, environment)
    return INTERRUPTED if code in (-signal.SIGINT, 128 + signal.SIGINT) else code


def _environment(job: PostTrainJob) -> dict[str, str]:
    """As the operator's pod would have it: on a laptop, `cpu-8` is eight virtual devices."""
    spec = job.spec
    chosen = resolve(spec.accelerator.type, spec.accelerator.topology, spec.accelerator.slices)
    given = {entry.name: entry.value for entry in spec.env if entry.value is not None}
    virtual = {}
    if chosen.is_cpu:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={chosen.total_devices}"
        virtual = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags.strip()}
    return {**os.environ, **virtual, **given}


def _run(words: list[str], environment: dict[str, str]) -> int:
    """The child gets Ctrl-C from the terminal itself and SIGTERM from us, saves and ends; we wait for it."""
    child = subprocess.Popen([sys.executable, "-m", _TRAINER, *words], env=environment)
    before = signal.signal(signal.SIGTERM, lambda number, frame: child.terminate())
    try:
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:
                continue
    finally:
        signal.signal(signal.SIGTERM, before)


def _forked(words: list[str], environment: dict[str, str]) -> int:
    """As `python -m`, without starting Python."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os._exit(_as_main(words, environment))
    while True:
        try:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        except KeyboardInterrupt:
            continue


def _as_main(words: list[str], environment: dict[str, str]) -> int:
    """The trainer's command line in this process; its exit code."""
    os.environ.update(environment)
    sys.argv = [_TRAINER, *words]
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
