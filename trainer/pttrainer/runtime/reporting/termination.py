"""How a run ends: signals that ask it to stop, and what it says when it does.

Every end becomes an exit code (`ptapi.failures`) and one line of JSON: the pod's termination message and
`termination.json`. A traceback is shown for bugs only.
"""

from __future__ import annotations

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
from pttrainer.runtime.io.storage import Place, is_storage_problem

MESSAGE_BYTES = 3000
"""Kubernetes keeps 4,096 bytes of a termination message; the JSON around it needs some."""

COMPILER = "compiler"
"""Name of the thread that compiles what is needed later (`compiling`)."""


class StopRequest:
    """Set by SIGTERM, or by the first Ctrl-C: the loop finishes its step, saves and ends. A second Ctrl-C kills."""

    def __init__(self) -> None:
        self.signal: str | None = None

    def listen(self) -> None:
        """Installs the handlers (main thread only)."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        self.signal = signal.Signals(number).name


@dataclass
class Attempt:
    """What is known of this attempt whenever it ends: its run directory, once that is ours alone (another writer's must
    not get our termination message), the last finished step, and what lets go of the directory."""

    place: Place | None = None
    step: int = 0
    release: Callable[[], None] = lambda: None


def exit_code(error: BaseException) -> ExitCode:
    """What an exception means to the operator."""
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
    """The message for a person: a foreseen end speaks for itself, a bug says that it is one."""
    if isinstance(error, TrainerError):
        return str(error)
    return f"{type(error).__name__}: {str(error).strip() or 'no message'}"


def report(code: ExitCode, message: str, attempt: Attempt, preflight: PreflightStatus | None = None) -> None:
    """Writes the termination message, and `termination.json` where a run directory can be written.

    preflight: its verdict, where this process is one.
    """
    kind = EXIT_CLASSES.get(code)
    short = message.encode()[:MESSAGE_BYTES].decode(errors="ignore")
    document = run_directory.Termination(
        exit_code=int(code), failure_class=kind or "", message=short, step=attempt.step, preflight=preflight
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
    """A full disk shows up in writers' threads, too; the main thread reports it, without their tracebacks."""
    show_traceback = threading.excepthook

    def hook(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_value is None or not is_storage_problem(arguments.exc_value):
            show_traceback(arguments)

    threading.excepthook = hook


def is_compiling() -> bool:
    """Whether something is still being compiled, which a process that ends need not wait for."""
    return any(thread.name == COMPILER for thread in threading.enumerate())


def show(error: BaseException, code: ExitCode) -> None:
    """Tells the person at the terminal."""
    if code == ExitCode.UNKNOWN:
        traceback.print_exception(error, file=sys.stderr)
    else:
        print(f"error: {describe(error)}" if code != ExitCode.PREEMPTED_SAVED else describe(error), file=sys.stderr)
