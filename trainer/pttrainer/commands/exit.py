"""The end of a verb: an exit code and, for a foreseen error, one line instead of a traceback."""

import os
import select
import signal
import sys
from collections.abc import Callable

from ptapi.failures import ExitCode
from pttrainer.runtime.reporting import termination

BROKEN_PIPE = 128 + signal.SIGPIPE
"""The reader of the output closed it, as `head` does."""


def exit_code_of(action: Callable[[], None]) -> int:
    """Run the action and return its exit code."""
    try:
        action()
        sys.stdout.flush()
    except BaseException as error:
        if isinstance(error, BrokenPipeError) and not _is_read():
            # The interpreter flushes stdout again at exit, which would raise once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return BROKEN_PIPE
        code = termination.exit_code(error)
        termination.show(error, code)
        return code
    return ExitCode.OK


def _is_read() -> bool:
    """Return False if stdout is what is broken, and no connection of the verb."""
    waiting = select.poll()
    waiting.register(sys.stdout, 0)
    return not waiting.poll(0)
