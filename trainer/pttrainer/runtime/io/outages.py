"""Tell an outage, after which the same call may succeed, from a request that is wrong. By type and HTTP status only.

The hub's and Google's clients come with HTTP libraries of their own, so their exceptions are known by name.
"""

import socket
from collections.abc import Iterator

_PASSING = (408, 429)
_NAMES = {"ConnectionError", "Timeout", "ChunkedEncodingError", "RetryError", "TransportError"}
"""Of requests, httpx (all of whose connection errors are TransportErrors), google.auth and google.api_core."""


def is_outage(error: BaseException) -> bool:
    """Return True if a service could not be reached, or says itself that it is overloaded or broken."""
    causes = list(_causes(error))
    if any(type(each).__name__ == "OfflineModeIsEnabled" for each in causes):  # the user's own choice
        return False
    status = next((code for code in map(_status, causes) if code), None)
    if status is not None:
        return status in _PASSING or status >= 500
    return any(map(_is_connection_problem, causes))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of the answer that an exception is about."""
    code = getattr(getattr(error, "response", None), "status_code", None) or getattr(error, "code", None)
    return int(code) if isinstance(code, int) else None


def _is_connection_problem(error: BaseException) -> bool:
    if isinstance(error, (ConnectionError, TimeoutError, socket.gaierror)):
        return True
    return any(kind.__name__ in _NAMES for kind in type(error).__mro__)
