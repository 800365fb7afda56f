"""Checks of a Job's status writes: a finished job stays finished, and the status is consistent."""

from typing import Any

from ptlocal.apiserver.errors import FieldError, invalid_value, required
from ptlocal.apiserver.rules.base import Manifest

_CONDITIONS = "status.conditions"


def errors_in(status: Manifest, old: Manifest) -> list[FieldError]:
    """Return the errors in the status."""
    now, before = _true(status), _true(old)
    errors: list[FieldError] = []
    finished = bool({"Complete", "Failed"} & now)
    if finished and not status.get("startTime"):
        errors.append(required("status.startTime", "startTime is required for finished job"))
    if "Complete" in now and not status.get("completionTime"):
        errors.append(required("status.completionTime", "completionTime is required for Complete jobs"))
    if "Complete" not in now and status.get("completionTime"):
        errors.append(
            _wrong(
                "status.completionTime",
                status["completionTime"],
                "cannot set completionTime when there is no Complete=True condition",
            )
        )
    for terminal, early in (("Complete", "SuccessCriteriaMet"), ("Failed", "FailureTarget")):
        if terminal in now and early not in now:
            errors.append(_condition(f"cannot set {terminal}=True condition without the {early}=true condition"))
        if terminal in before and terminal not in now:
            errors.append(_condition(f"cannot disable the terminal {terminal}=True condition"))
    for pair in (("Complete", "Failed"), ("Complete", "FailureTarget"), ("SuccessCriteriaMet", "FailureTarget")):
        if set(pair) <= now:
            errors.append(_condition(f"cannot set {pair[0]}=True and {pair[1]}=true conditions"))
            break
    if finished and (status.get("active") or 0) > 0:
        errors.append(_wrong("status.active", status["active"], "active>0 is invalid for finished job"))
    if finished and (status.get("terminating") or 0) > 0:
        errors.append(_wrong("status.terminating", status["terminating"], "terminating>0 is invalid for finished job"))
    return errors


def _true(status: Manifest) -> set[str]:
    return {c.get("type", "") for c in status.get("conditions") or [] if c.get("status") == "True"}


def _condition(why: str) -> FieldError:
    return FieldError(_CONDITIONS, "FieldValueInvalid", f"Invalid value: {why}")


def _wrong(path: str, value: Any, why: str) -> FieldError:
    return invalid_value(path, value, why)
