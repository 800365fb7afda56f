"""Classify why the API server refuses to create pods, from the events of the controller that tries. Pure, table-driven.

The Job controller reports each try as `FailedCreate`, the JobSet controller as `JobCreationFailed`; neither says so in
its object's status, and both try for ever.
"""

import re
from collections.abc import Iterable

from ptapi.failures import FailureClass
from ptkube.resources import Manifest
from ptoperator.failures.pod_failures import StartFailure

REASONS = {"Job": "FailedCreate", "JobSet": "JobCreationFailed"}
_TABLE: tuple[tuple[str, FailureClass], ...] = (
    (r"exceeded quota|failed quota", FailureClass.QUOTA),
    (r"failed calling webhook|Internal error|timeout|timed out|too many requests", FailureClass.SERVICE_LOST),
)
"""Anything else is a rule of the namespace that the job does not keep."""
_SUFFIX = re.compile(r'(pods "[^"]*-)[bcdfghjklmnpqrstvwxz2456789]{5}"')
"""A name that the API server generated: each try has another, and a message must not change with it."""


def creation_failure(owner: str, events: Iterable[Manifest], not_before: str) -> StartFailure | None:
    """Return why the pods of an owner (`Job llama`) are refused, or None. not_before: when they went missing."""
    recent = sorted((event for event in events if last_time(event) >= not_before), key=last_time)
    if not recent:
        return None
    message = _SUFFIX.sub(r'\1*"', str(recent[-1].get("message") or ""))
    kind = next((kind for pattern, kind in _TABLE if re.search(pattern, message, re.IGNORECASE)), None)
    since = max(not_before, min(map(_first, recent)))
    return StartFailure(kind or FailureClass.CONFIG_ERROR, f"{owner}: {message}", "", since)


def _first(event: Manifest) -> str:
    """Return when an event was first recorded; newer clients fill in another field."""
    return str(
        event.get("firstTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or ""
    )


def last_time(event: Manifest) -> str:
    """Return when an event happened last."""
    return str((event.get("series") or {}).get("lastObservedTime") or event.get("lastTimestamp") or _first(event))
