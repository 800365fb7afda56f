"""Error responses of the server: metav1.Status, with the messages of a real API server.

Every refusal is a `StatusError`, which http/server.py turns into an HTTP response. Clients match on `reason` and people
read `message`, so both are exactly the real ones where they are known.
"""

import json
from dataclasses import dataclass, field
from typing import Any

Manifest = dict[str, Any]


@dataclass(frozen=True)
class FieldError:
    """One invalid field. `reason` is a metav1.CauseType, `message` what follows `path: `."""

    path: str
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class StatusError(Exception):
    """An error response. `code` is the HTTP status; `headers` are sent with it."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: Manifest | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}
        self.headers = headers or {}

    def body(self) -> Manifest:
        """Return the metav1.Status."""
        status: Manifest = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        if self.details:
            status["details"] = self.details
        status["code"] = self.code
        return status


@dataclass(frozen=True)
class Named:
    """How errors name a kind: `posttrainjobs.posttrain.dev` (resource) or `PostTrainJob.posttrain.dev` (kind)."""

    group: str
    plural: str
    kind: str
    name: str = field(default="")

    @property
    def resource(self) -> str:
        """Return the resource name with its group."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def group_kind(self) -> str:
        """Return the kind with its group."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    def details(self, kind: str) -> Manifest:
        """Return the details of a Status."""
        return {k: v for k, v in (("name", self.name), ("group", self.group), ("kind", kind)) if v}


def success(what: Named, uid: str) -> Manifest:
    """Return the Status of a successful deletion."""
    details = {**what.details(what.plural), "uid": uid}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def not_found(what: Named) -> StatusError:
    """Return a 404 for an object."""
    return StatusError(404, "NotFound", f'{what.resource} "{what.name}" not found', what.details(what.plural))


def no_such_path() -> StatusError:
    """Return a 404 for a path."""
    return StatusError(404, "NotFound", "the server could not find the requested resource")


def already_exists(what: Named) -> StatusError:
    """Return a 409 for an object that already exists."""
    return StatusError(409, "AlreadyExists", f'{what.resource} "{what.name}" already exists', what.details(what.plural))


def conflict(what: Named, why: str) -> StatusError:
    """Return a 409 for a conflicting write."""
    return StatusError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {what.resource} "{what.name}": {why}',
        what.details(what.plural),
    )


def modified(what: Named) -> StatusError:
    """Return a 409 for an outdated resourceVersion."""
    return conflict(what, "the object has been modified; please apply your changes to the latest version and try again")


def invalid(what: Named, errors: list[FieldError]) -> StatusError:
    """Return a 422 with every field error."""
    listed = list(dict.fromkeys(str(error) for error in errors))
    text = listed[0] if len(listed) == 1 else f"[{', '.join(listed)}]"
    causes = [{"reason": e.reason, "message": e.message, "field": e.path or "<nil>"} for e in errors]
    return StatusError(
        422,
        "Invalid",
        f'{what.group_kind} "{what.name}" is invalid: {text}',
        {**what.details(what.kind), "causes": causes},
    )


def forbidden(what: Named, why: str) -> StatusError:
    """Return a 403."""
    return StatusError(
        403, "Forbidden", f'{what.resource} "{what.name}" is forbidden: {why}', what.details(what.plural)
    )


def bad_request(message: str) -> StatusError:
    """Return a 400."""
    return StatusError(400, "BadRequest", message)


def unauthorized() -> StatusError:
    """Return a 401."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def expired(message: str) -> StatusError:
    """Return a 410 for a resourceVersion that is too old."""
    return StatusError(410, "Expired", message)


def method_not_allowed() -> StatusError:
    """Return a 405."""
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def unsupported_media_type(accepted: list[str]) -> StatusError:
    """Return a 415 with the accepted types."""
    wanted = ", ".join(accepted)
    return StatusError(
        415,
        "UnsupportedMediaType",
        f"the body of the request was in an unknown format - accepted media types include: {wanted}",
    )


def too_large(limit: int) -> StatusError:
    """Return a 413."""
    return StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}")


def show(value: Any) -> str:
    """Format a value for an error message: strings quoted, the rest as JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def invalid_value(path: str, value: Any, why: str) -> FieldError:
    """Return the error of an invalid value."""
    return FieldError(path, "FieldValueInvalid", f"Invalid value: {show(value)}: {why}")


def required(path: str, why: str = "") -> FieldError:
    """Return the error of a missing value."""
    return FieldError(path, "FieldValueRequired", f"Required value: {why}" if why else "Required value")


def forbidden_field(path: str, why: str) -> FieldError:
    """Return the error of a field that must not be set or changed."""
    return FieldError(path, "FieldValueForbidden", f"Forbidden: {why}")


def not_supported(path: str, value: Any, accepted: list[Any]) -> FieldError:
    """Return the error of a value that is not among the accepted ones."""
    listed = ", ".join(show(a) for a in accepted)
    return FieldError(path, "FieldValueNotSupported", f"Unsupported value: {show(value)}: supported values: {listed}")
