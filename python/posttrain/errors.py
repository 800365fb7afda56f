"""The package's exceptions: a message, and a hint that names the next thing to try.

What the layers below raise (ptctl's and the API server's) is translated in one place, `translated`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from ptctl.errors import CliError, MissingError, TimedOutError
from ptkube import errors as kube_errors


class Error(Exception):
    """A failure; `hint` may be empty."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class NotFound(Error):
    """The job, or what is asked of its run, does not exist."""


class TimedOut(Error, TimeoutError):
    """The timeout of a wait passed."""


class JobFailed(Error):
    """The job has failed; `failure_class` is its class, as in docs/reference/failures.md."""

    def __init__(self, failure_class: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.args = (failure_class, message, hint)  # what pickle calls the class with
        self.failure_class = failure_class


class RemoteTraceback(Exception):
    """The traceback of an exception where it was raised: the `__cause__` of the exception that `Run.value` raises."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@contextmanager
def translated() -> Iterator[None]:
    """Raise this package's errors in place of ptctl's and the API server's."""
    try:
        yield
    except CliError as error:
        kinds = {MissingError: NotFound, TimedOutError: TimedOut}
        raise kinds.get(type(error), Error)(error.message, error.hint) from error
    except kube_errors.ApiError as error:
        from ptctl.ui.exit_codes import api_hint

        message, _, hint = str(error).partition("\nhint: ")
        kind = NotFound if isinstance(error, kube_errors.NotFound) else Error
        raise kind(message, hint or api_hint(error)) from error
