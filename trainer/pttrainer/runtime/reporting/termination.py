"""How a run ends: stop signals, exit code, termination message.

Every end becomes an exit code (`ptapi.failures`) and one line of JSON: the pod's termination message and
`termination.json`. A traceback is shown for bugs only.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ptapi import run_directory
from ptapi.failures import EXIT_CLASSES, ExitCode
from ptapi.status import PreflightStatus
from pttrainer.errors import StorageError, TrainerError
from pttrainer.runtime.io.place import Place
from pttrainer.runtime.io.storage_errors import is_storage_problem

MESSAGE_BYTES = 3000
"""Kubernetes keeps 4,096 bytes of a termination message; the JSON around it needs some."""

COMPILER = "compiler"
"""Name of the thread that compiles programs ahead of time (`compiled_steps`)."""


class StopRequest:
    """Set by SIGTERM or the first Ctrl-C: the loop finishes its step, saves and ends. A second Ctrl-C kills."""

    def __init__(self) -> None:
        self.signal: str | None = None

    def listen(self) -> None:
        """Install the handlers (main thread only)."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        self.signal = signal.Signals(number).name


@dataclass
class Attempt:
    """State of this attempt that its end needs.

    place: the run directory, once this process owns it (another writer's must not get our termination message);
    step: the last finished step; release: releases the directory.
    """

    place: Place | None = None
    step: int = 0
    release: Callable[[], None] = lambda: None


def exit_code(error: BaseException) -> ExitCode:
    """Return the exit code for an exception."""
    if isinstance(error, TrainerError):
        return error.exit_code
    text = str(error)
    if is_storage_problem(error):
        return ExitCode.STORAGE
    if isinstance(error, MemoryError):
        return ExitCode.OUT_OF_MEMORY_HOST
    if "RESOURCE_EXHAUSTED" in text and "memory" in text.lower():
        return ExitCode.OUT_OF_MEMORY_HBM
    return ExitCode.UNKNOWN


def describe(error: BaseException) -> str:
    """Return the message for a person: expected errors speak for themselves, a bug is marked as one."""
    if isinstance(error, TrainerError):
        return str(error)
    return f"{type(error).__name__}: {str(error).strip() or 'no message'}"


def report(
    code: ExitCode, message: str, attempt: Attempt, preflight: PreflightStatus | None = None, staged: str | None = None
) -> None:
    """Write the termination message, and `termination.json` if the run directory is writable.

    preflight: the verdict, if this process is a preflight. staged: the copy, if it staged a model.
    """
    kind = EXIT_CLASSES.get(code)
    short = message.encode()[:MESSAGE_BYTES].decode(errors="ignore")
    document = run_directory.Termination(
        exit_code=int(code),
        failure_class=kind or "",
        message=short,
        step=attempt.step,
        preflight=preflight,
        staged=staged,
    )
    line = document.model_dump_json(by_alias=True, exclude_none=True)
    log = os.environ.get(run_directory.TERMINATION_LOG_ENV)
    if log:
        try:
            Path(log).write_text(line)
        except OSError as error:
            print(f"warning: {log}: termination message cannot be written: {error}", file=sys.stderr)
    if attempt.place is not None:
        try:
            attempt.place.write(run_directory.TERMINATION, line.encode())
        except StorageError as error:
            print(f"warning: {error}", file=sys.stderr)


def quiet_background_threads() -> None:
    """Silence storage errors of background threads: the main thread reports them, without their tracebacks.

    The first failed write of a checkpoint ends the event loop that waits for all of them. TensorStore's threads still
    wake that loop when the others fail, and Python calls its refusal unraisable.
    """
    show_traceback, show_unraisable = threading.excepthook, sys.unraisablehook

    def hook(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_value is None or not is_storage_problem(arguments.exc_value):
            show_traceback(arguments)

    def unraisable_hook(arguments: "sys.UnraisableHookArgs") -> None:
        if not isinstance(arguments.exc_value, RuntimeError) or str(arguments.exc_value) != "Event loop is closed":
            show_unraisable(arguments)

    threading.excepthook, sys.unraisablehook = hook, unraisable_hook


def is_compiling() -> bool:
    """Return True while something is being compiled; a process that ends need not wait for it."""
    return any(thread.name == COMPILER for thread in threading.enumerate())


def show(error: BaseException, code: ExitCode) -> None:
    """Show the error to the user at the terminal."""
    if code == ExitCode.UNKNOWN:
        traceback.print_exception(error, file=sys.stderr)
    else:
        print(f"error: {describe(error)}" if code != ExitCode.PREEMPTED_SAVED else describe(error), file=sys.stderr)
