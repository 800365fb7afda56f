"""What Ctrl-C does: end the program at once with one line, unless code that must clean up takes over.

Ending is not left to KeyboardInterrupt: raised inside an import, it becomes a traceback or is lost.
"""

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from ptctl.errors import INTERRUPTED

Handler = Callable[[int, FrameType | None], object]


def install() -> None:
    """Make Ctrl-C end the program; leave it ignored where the shell has it ignored (`nohup`, background jobs)."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, exit_at_once)
        # Python gives up its handlers before it has ended, and a Ctrl-C would then replace the exit code.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


def exit_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """Say so and end the program, without unwinding it."""
    say()
    os._exit(INTERRUPTED)


def raise_once(number: int, frame: FrameType | None) -> NoReturn:
    """Say so and raise KeyboardInterrupt; the next time, end the program at once."""
    signal.signal(number, exit_at_once)
    say()
    raise KeyboardInterrupt


def say(text: str = "Interrupted.") -> None:
    """Write a line to stderr, from a signal handler."""
    os.write(2, f"{text}\n".encode())


@contextmanager
def handled(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    """Handle signals (default: Ctrl-C) with another handler; those that the shell has ignored stay ignored.

    Another thread than the main one may set no handlers: there this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    active = [n for n in numbers or (signal.SIGINT,) if signal.getsignal(n) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, handler) for number in active}
    try:
        yield
    finally:
        for number, earlier in previous.items():
            signal.signal(number, earlier)


def call(command: list[str]) -> int:
    """Run a command that Ctrl-C ends with this program, and return its exit code."""
    import subprocess

    with handled(raise_once):
        return subprocess.call(command)
