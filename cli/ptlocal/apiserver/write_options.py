"""Options of a write: the query parameters of POST, PUT, PATCH and DELETE, checked once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ptlocal.apiserver.errors import FieldError, Named, StatusError, bad_request, invalid, invalid_value, not_supported

FieldValidation = Literal["Strict", "Warn", "Ignore"]
_VALIDATION: tuple[FieldValidation, ...] = ("Ignore", "Strict", "Warn")


@dataclass(frozen=True)
class WriteOptions:
    """Options of a create, update or patch."""

    manager: str
    dry_run: bool = False
    field_validation: FieldValidation = "Warn"
    subresource: str = ""
    force: bool = False


def write_options(query: Mapping[str, str], user_agent: str, subresource: str = "") -> WriteOptions:
    """Parse the options of a create, update or patch."""
    manager = query.get("fieldManager") or user_agent.split("/")[0][:128] or "unknown"
    if len(manager) > 128:
        raise invalid_option("PatchOptions", invalid_value("fieldManager", manager, "may not be more than 128 bytes"))
    requested = query.get("fieldValidation") or "Warn"
    validation = next((mode for mode in _VALIDATION if mode == requested), None)
    if validation is None:
        raise invalid_option("PatchOptions", not_supported("fieldValidation", requested, list(_VALIDATION)))
    dry_run = is_dry_run([query["dryRun"]] if query.get("dryRun") else [])
    return WriteOptions(manager, dry_run, validation, subresource, flag(query, "force"))


def is_dry_run(values: Any) -> bool:
    """Return True for a dry run."""
    if not isinstance(values, list) or any(value != "All" for value in values):
        raise invalid_option("CreateOptions", not_supported("dryRun", values, ["All"]))
    return bool(values)


def flag(query: Mapping[str, str], name: str) -> bool:
    """Parse a boolean parameter."""
    value = query.get(name, "")
    if value in ("", "0", "false", "False", "f"):
        return False
    if value in ("1", "true", "True", "t"):
        return True
    raise bad_request(f'{name}: Invalid value: "{value}": must be true or false')


def whole_number(query: Mapping[str, str], name: str) -> int | None:
    """Parse a non-negative integer parameter."""
    value = query.get(name)
    if not value:
        return None
    try:
        number = int(value)
    except ValueError:
        raise bad_request(f'{name}: Invalid value: "{value}": must be a whole number') from None
    if number < 0:
        raise bad_request(f'{name}: Invalid value: "{value}": must not be negative')
    return number


def invalid_option(kind: str, error: FieldError) -> StatusError:
    """Return the error for an invalid option."""
    return invalid(Named("meta.k8s.io", "", kind), [error])


@dataclass(frozen=True)
class DeleteOptions:
    """Options of a deletion."""

    propagation: str | None = None
    grace_s: int | None = None
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False


def delete_options(query: Mapping[str, str], body: Mapping[str, Any]) -> DeleteOptions:
    """Parse the options of a deletion. The body overrides the query."""
    propagation = body.get("propagationPolicy") or query.get("propagationPolicy") or None
    if propagation not in (None, "Foreground", "Background", "Orphan"):
        accepted = ["Foreground", "Background", "Orphan", "nil"]
        raise invalid_option("DeleteOptions", not_supported("propagationPolicy", propagation, accepted))
    if propagation is None and body.get("orphanDependents") is not None:
        propagation = "Orphan" if body["orphanDependents"] else "Background"
    grace = body.get("gracePeriodSeconds")
    if grace is None:
        grace = whole_number(query, "gracePeriodSeconds")
    if grace is not None and (not isinstance(grace, int) or isinstance(grace, bool)):
        raise bad_request(f"gracePeriodSeconds: Invalid value: {grace!r}: must be a whole number")
    preconditions = body.get("preconditions") or {}
    if not isinstance(preconditions, dict):
        raise bad_request("preconditions: must be an object")
    dry_run = is_dry_run(body.get("dryRun") or ([query["dryRun"]] if query.get("dryRun") else []))
    return DeleteOptions(propagation, grace, preconditions.get("uid"), preconditions.get("resourceVersion"), dry_run)
