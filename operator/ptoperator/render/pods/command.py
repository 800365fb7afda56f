"""The command of the trainer's container: posttrain's trainer, MaxText, a function, or the user's own.

A program of others gets what ours gets (the job, its place among the processes, a cache directory), and also its run
directory and a writable home: it runs as a user that its image does not know. It starts without a shell, with one
exception: a JAX process number that must be computed (several slices of several hosts, several containers per host).
Our trainer computes it itself; for others a line of shell does, and is then replaced by the program.
"""

from dataclasses import dataclass

from ptapi.run_directory import JOB_FILE, RUN_DIRECTORY_ENV, run_uri
from ptkube.resources import Manifest
from ptoperator.render.layout import Layout
from ptoperator.render.pods import maxtext_command

NUMBERED = (
    'export JAX_PROCESS_ID="$(( (POSTTRAIN_SLICE_INDEX * POSTTRAIN_HOSTS_PER_SLICE + POSTTRAIN_HOST_INDEX)'
    ' * ${POSTTRAIN_PROCESSES_PER_HOST:-1} + ${POSTTRAIN_PROCESS_IN_HOST:-0} ))" && exec "$@"'
)
"""Shell: the number as `render.env` says it is made, then the program in the shell's place."""


@dataclass(frozen=True)
class Program:
    """command: as in a container, with its first arguments."""

    command: tuple[str, ...]
    args: tuple[str, ...] = ()


def program(layout: Layout) -> Program:
    """Return the command of the job's runtime."""
    runtime = layout.job.spec.runtime
    if runtime.container is not None:
        return _numbered(layout, Program(tuple(runtime.container.command), tuple(runtime.container.args)))
    if runtime.maxtext is not None:
        return _numbered(
            layout, Program(maxtext_command.command(layout), maxtext_command.args(layout, runtime.maxtext))
        )
    verb = "run" if runtime.function is None else "function"
    return Program(("python", "-m", "pttrainer"), (verb, JOB_FILE))


def foreign_env(layout: Layout) -> dict[str, str]:
    """Return the variables that only programs of others need."""
    runtime = layout.job.spec.runtime
    if runtime.is_native:
        return {}
    home = {"HOME": "/tmp", "USER": "posttrain"} if runtime.function is None else {}
    return {RUN_DIRECTORY_ENV: run_uri(layout.job.spec.output.uri, layout.name), **home}


def process_namespace(layout: Layout) -> Manifest:
    """Share the pod's process namespace, so that a program without a signal handler receives SIGTERM.

    As process 1 it would ignore it, and every stop would last the whole grace period.
    """
    runtime = layout.job.spec.runtime
    return {} if runtime.is_native or runtime.function else {"shareProcessNamespace": True}


def _numbered(layout: Layout, theirs: Program) -> Program:
    if layout.is_pathways or not layout.computes_process_id:
        return theirs
    return Program(("/bin/sh", "-c", NUMBERED, "sh", *theirs.command), theirs.args)
