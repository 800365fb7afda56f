"""Says of Kueue's AdmissionChecks that ask for node pools that somebody answers them: else their ClusterQueues stop.

The answers themselves are in `admission`. Where Kueue is not installed there is nothing to say.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

from ptkube import timestamps
from ptkube.errors import NotFound
from ptkube.objects import holds
from ptkube.resources import ADMISSION_CHECKS, Manifest, Resource
from ptoperator.kube import labels

_ACTIVE = "Active"


class Client(Protocol):
    """The part of `kube.Kube` that this needs."""

    def list(self, r: Resource, namespace: str | None = None, /) -> Any: ...
    def replace_status(self, r: Resource, body: Manifest, /) -> Manifest: ...


def mark_active(client: Client, now: datetime) -> None:
    """Every check that names us and is not marked yet. Raises ApiError."""
    try:
        checks = client.list(ADMISSION_CHECKS).items
    except NotFound:
        return
    for check in checks:
        if check["spec"]["controllerName"] == labels.POOLS_CHECK and not holds(check, _ACTIVE):
            client.replace_status(ADMISSION_CHECKS, {**check, "status": _status(check, now)})


def _status(check: Manifest, now: datetime) -> Manifest:
    active = {
        "type": _ACTIVE,
        "status": "True",
        "reason": _ACTIVE,
        "message": "posttrain's operator makes the node pools of its jobs",
        "lastTransitionTime": timestamps.to_text(now),
        "observedGeneration": int(check["metadata"].get("generation") or 0),
    }
    status = check.get("status") or {}
    others = [each for each in status.get("conditions") or [] if each["type"] != _ACTIVE]
    return {**status, "conditions": [*others, active]}
