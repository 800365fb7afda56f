"""ptctl's exceptions and the exit code of each.

Code raises; `ui/exit_codes.py` prints the message and picks the code. Nothing else calls sys.exit.
"""

OK = 0
"""Done."""
FAILED = 1
"""The job or the API call failed."""
USAGE = 2
"""Invalid command line or invalid job."""
NOT_FOUND = 3
"""The object does not exist."""
NOT_AUTHORISED = 4
"""The cluster does not authenticate or authorise the user."""
TIMED_OUT = 124
"""The wait timed out (as `timeout(1)`)."""
INTERRUPTED = 130
"""Ctrl-C (128 + SIGINT, as in every shell)."""
BROKEN_PIPE = 141
"""The reader of the output closed it (128 + SIGPIPE, as kubectl piped into `head`)."""


class CliError(Exception):
    """A failure with a message for the user; `hint` names the next thing to try."""

    code = FAILED

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InputError(CliError):
    """A file or value from the user is invalid."""

    code = USAGE


class MissingError(CliError):
    """A named object does not exist."""

    code = NOT_FOUND


class TimedOutError(CliError):
    """The --timeout passed."""

    code = TIMED_OUT
