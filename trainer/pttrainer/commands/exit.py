"""The end of a verb: an exit code and, for a foreseen error, one line instead of a traceback."""

from collections.abc import Callable

from ptapi.failures import ExitCode
from pttrainer.runtime.reporting import termination


def exit_code_of(action: Callable[[], None]) -> ExitCode:
    """Run the action and return its exit code."""
    try:
        action()
    except BaseException as error:
        code = termination.exit_code(error)
        termination.show(error, code)
        return code
    return ExitCode.OK
