"""Map GKE's messages to failure classes, by a table of patterns that are tried in order. Pure.

The same text arrives as the error of a call, the error of an operation, a condition of a pool or its status message, so
only the text counts. docs/guides/gke.md lists the sources and what to do.
"""

import re
from dataclasses import dataclass

from ptapi.failures import FailureClass


@dataclass(frozen=True)
class CloudFailure:
    """An error of the cloud. kind: None if it passes by itself. code: the cloud's name for it. message: for people."""

    kind: FailureClass | None
    code: str
    message: str

    @property
    def is_definite(self) -> bool:
        """Return True if it is useless to retry at once."""
        return self.kind is not None


_TABLE: tuple[tuple[str, FailureClass | None], ...] = (
    (r"incompatible operation|operation .* (is )?(already )?(running|in progress)", None),
    # requests per minute, not chips
    (
        r"quota metric '[^']*(requests|queries|operations)|requests? per (minute|second|day)|rateLimitExceeded"
        r"|RATE_LIMIT|too[ _]many[ _]requests",
        None,
    ),
    (
        r"Insufficient reserved capacity|reservations? \S* ?.*(not found|does not exist|mismatch|no available"
        r"|do(es)? not have|fully (used|consumed)|no capacity)|is incorrect for the requested resources"
        r"|RESERVATION_\w+",
        FailureClass.RESERVATION,
    ),
    (
        r"STOCKOUT|ZONE_RESOURCE_POOL_EXHAUSTED|enough resources available"
        r"|(lack of|insufficient|not enough|no) capacity|Requested resource is exhausted"
        r"|resource_availability|currently unavailable in the \S+ zone",
        FailureClass.STOCKOUT,
    ),
    (
        r"GCE_QUOTA_EXCEEDED|QUOTA_EXCEEDED|\bquotas?\b[^.\n]*?\b(exceeded|insufficient|reached|exhausted)"
        r"|\b(insufficient|exceed(s|ed)?|enough|over|beyond)\b[^.\n]{0,80}?\bquotas?\b",
        FailureClass.QUOTA,
    ),
    (
        r"NODE_SERVICE_ACCOUNT_MISSING_PERMISSIONS|GKE_SERVICE_ACCOUNT_DELETED|CLOUD_KMS_KEY"
        r"|insufficient free IP|IP_SPACE_EXHAUSTED",
        FailureClass.CONFIG_ERROR,
    ),
)
_CALLS: dict[str, FailureClass | None] = {
    "PERMISSION_DENIED": FailureClass.CONFIG_ERROR,
    "UNAUTHENTICATED": FailureClass.CONFIG_ERROR,
    "INVALID_ARGUMENT": FailureClass.CONFIG_ERROR,
    "NOT_FOUND": FailureClass.CONFIG_ERROR,
    "UNIMPLEMENTED": FailureClass.CONFIG_ERROR,
    "OUT_OF_RANGE": FailureClass.CONFIG_ERROR,
}
"""gRPC codes of calls whose words the table does not know; every other code passes by itself."""
_HINTS: tuple[tuple[str, str], ...] = (
    ("has not been used in project", "gcloud services enable container.googleapis.com --project PROJECT"),
    ("requires billing to be enabled", "link the project to a billing account"),
    ("PERMISSION_DENIED", "the operator's Google service account needs roles/container.clusterAdmin, and "
     "roles/iam.serviceAccountUser on the nodes' service account"),
    ("NODE_SERVICE_ACCOUNT_MISSING_PERMISSIONS", "the nodes' service account needs "
     "roles/container.defaultNodeServiceAccount"),
    ("UNAUTHENTICATED", "bind the operator's Kubernetes service account to a Google one (Workload Identity)"),
    ("insufficient free IP", "the cluster's pod IP range is exhausted: add a range, or delete node pools"),
)  # fmt: skip
_CODES = (
    "ZONE_RESOURCE_POOL_EXHAUSTED",
    "GCE_STOCKOUT",
    "GCE_QUOTA_EXCEEDED",
    "QUOTA_EXCEEDED",
    "NODE_SERVICE_ACCOUNT_MISSING_PERMISSIONS",
    "GKE_SERVICE_ACCOUNT_DELETED",
)
"""Words that people search for; the first that occurs names the failure."""
_SHORT = re.compile(
    r"""resource:? "?(?P<metric>[\w-]+)"?[:.]? .*?requires '(?P<need>[\d.]+)' and is short '(?P<short>[\d.]+)'"""
    r""".*?quota (?:of|is) '(?P<limit>[\d.]+)'(?: with '(?P<left>[\d.]+)' available)?""",
    re.IGNORECASE | re.DOTALL,
)
_EXCEEDED = re.compile(
    r"Quota (?:limit )?'(?P<metric>[^']+)' (?:has been )?exceeded\.?\s*"
    r"(?:Limit: (?P<limit>[\d.]+))?(?P<where> in \w+ [\w-]+)?",
    re.IGNORECASE,
)
_MESSAGE_LIMIT = 600


def of_call(code: str, text: str) -> CloudFailure:
    """Classify the error of an API call. code: gRPC's."""
    failure = _classify(code, text)
    return failure if failure is not None else _failure(_CALLS.get(code), code, text)


def of_outcome(code: str, text: str) -> CloudFailure:
    """Classify the failure of an operation or a pool. It is final, so one with an unknown text is definite, too."""
    failure = _classify(code, text)
    if failure is not None and failure.is_definite:
        return failure
    return _failure(_CALLS.get(code) or FailureClass.UNKNOWN, code, text)


def of_condition(code: str, text: str) -> CloudFailure | None:
    """Classify a pool's condition; None unless it is known and final, because other conditions come and go."""
    failure = _classify(code, text)
    return failure if failure is not None and failure.is_definite else None


def _classify(code: str, text: str) -> CloudFailure | None:
    full_text = f"{code} {text}"
    for pattern, kind in _TABLE:
        if re.search(pattern, full_text, re.IGNORECASE):
            return _failure(kind, code, text)
    return None


def _failure(kind: FailureClass | None, code: str, text: str) -> CloudFailure:
    full_text = f"{code} {text}"
    named = next((each for each in _CODES if each in full_text), code)
    message = _quota_message(text) if kind is FailureClass.QUOTA else " ".join(text.split())[:_MESSAGE_LIMIT]
    hint = next((hint for mark, hint in _HINTS if mark in full_text and kind is FailureClass.CONFIG_ERROR), "")
    return CloudFailure(kind, named, f"{message}; hint: {hint}" if hint else message)


def _quota_message(text: str) -> str:
    """Return metric, need and limit of every quota that is too small."""
    shortfalls = [
        f"quota {each['metric']}: needs {_plain(each['need'])}, limit {_plain(each['limit'])}, "
        f"short of {_plain(each['short'])}"
        for each in _SHORT.finditer(text)
    ]
    shortfalls += [
        f"quota {each['metric']}{each['where'] or ''}: more than the limit"
        + (f" of {_plain(each['limit'])}" if each["limit"] else "")
        for each in _EXCEEDED.finditer(text)
    ]
    return "; ".join(shortfalls) or " ".join(text.split())[:_MESSAGE_LIMIT]


def _plain(number: str) -> str:
    return number.rstrip(".").removesuffix(".0")
