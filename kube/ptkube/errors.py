"""What can go wrong when talking to the Kubernetes API, one class per case a caller can act on.

The idea: the server's own sentence is kept (it names object and field), and only where it does not say what to do
next is a hint added. `status` is the HTTP status, 0 where no answer came.
"""

import json
from typing import Any


class ApiError(Exception):
    """The API server refused, or could not be reached. `str(error)` is a sentence for a person."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


class NotFound(ApiError):
    """404: the object, or its whole kind, is not there."""


class AlreadyExists(ApiError):
    """409 on create: an object of that name is there."""


class Conflict(ApiError):
    """409: somebody else wrote in between, or owns the field (server-side apply without force)."""


class Invalid(ApiError):
    """422 or 400: the object is wrong; the message names the fields."""


class Forbidden(ApiError):
    """403: known, but not allowed."""


class Unauthorized(ApiError):
    """401: the credentials were not accepted."""


class Gone(ApiError):
    """410: the resourceVersion is too old; list again."""


CLIENT_CLOSED = "ClientClosed"
"""The reason of an Unreachable that this program caused: to wait for an end of it is in vain."""


class Unreachable(ApiError):
    """No usable answer: refused, timed out, name not found, TLS failed, connection lost."""


class ConfigError(ApiError):
    """The kubeconfig (or its absence) does not say how to reach a cluster."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "KubeconfigInvalid", message)


_BY_REASON: dict[str, type[ApiError]] = {
    "NotFound": NotFound,
    "AlreadyExists": AlreadyExists,
    "Conflict": Conflict,
    "Invalid": Invalid,
    "BadRequest": Invalid,
    "Forbidden": Forbidden,
    "Unauthorized": Unauthorized,
    "Gone": Gone,
    "Expired": Gone,
}
_BY_STATUS: dict[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
}


def parsed(answer: bytes) -> Any:
    """Return the JSON of an answer; raise Unreachable if it is cut off, or not the API server's."""
    try:
        return json.loads(answer)
    except (ValueError, RecursionError):
        raise unusable(answer.decode("utf-8", "replace")) from None


def unusable(answer: Any) -> Unreachable:
    """Return the error of an answer that no API server gives."""
    shown = answer if isinstance(answer, str) else json.dumps(answer)
    message = f"the answer is not one of a Kubernetes API server: {' '.join(shown.split())[:120]}"
    return Unreachable(0, "BadAnswer", f"{message}\nhint: is a proxy between, or is the server's address another's?")


def from_response(status: int, body: bytes) -> ApiError:
    """Return the error of an HTTP response of 400 or more, from a metav1.Status or plain text."""
    reason, message = "", ""
    try:
        answer = parsed(body)
    except Unreachable:
        answer = None
    if isinstance(answer, dict):
        reason = str(answer.get("reason") or "")
        message = str(answer.get("message") or "")
    if not message:
        text = body.decode("utf-8", "replace").strip()
        message = f"the Kubernetes API answered HTTP {status}" + (f": {text[:300]}" if text else "")
    kind = _BY_REASON.get(reason) or _BY_STATUS.get(status, ApiError)
    if kind is Unauthorized:
        message = f"{message}\nhint: log in again, or check the user of the current kubeconfig context"
    return kind(status, reason or kind.__name__, message)
