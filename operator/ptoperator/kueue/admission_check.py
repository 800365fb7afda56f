"""Mark Kueue's AdmissionChecks for node pools as active: otherwise their ClusterQueues stop.

`admission_answer` has the answers themselves. If Kueue is not installed there is nothing to do.
"""

from datetime import datetime

from ptkube import timestamps
from ptkube.errors import NotFound
from ptkube.objects import holds
from ptkube.resources import ADMISSION_CHECKS, Manifest
from ptoperator.kube import labels
from ptoperator.kube.audited_client import KubeClient

_ACTIVE = "Active"


def mark_active(client: KubeClient, now: datetime) -> None:
    """Mark every check that names this operator and is not active yet. Raises ApiError."""
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
