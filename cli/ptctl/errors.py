"""What ptctl can say when something does not work, and the exit code each case has.

The idea: code raises, `exits.py` prints and picks the code. Nothing else calls sys.exit.
"""

from __future__ import annotations

OK = 0
FAILED = 1
"""The job, or the call, failed."""
USAGE = 2
"""A wrong command line, or a job that is not valid."""
NOT_FOUND = 3
"""The object does not exist."""
NOT_AUTHORISED = 4
"""The cluster does not know us, or does not let us."""
TIMED_OUT = 124
"""What was waited for did not happen in time (as `timeout(1)`)."""
INTERRUPTED = 130
"""Ctrl-C (128 + SIGINT, as in every shell)."""
BROKEN_PIPE = 141
"""The reader of our output went away (128 + SIGPIPE, as kubectl under `head`)."""


class CliError(Exception):
    """A failure with a sentence for a person; `hint` is the next thing to try."""

    code = FAILED

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InputError(CliError):
    """A file or value that the user gave is wrong."""

    code = USAGE


class MissingError(CliError):
    """Something that was named does not exist."""

    code = NOT_FOUND


class TimedOutError(CliError):
    """The time given with --timeout passed."""

    code = TIMED_OUT
