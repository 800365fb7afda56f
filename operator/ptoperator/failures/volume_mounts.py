"""Classify why the kubelet cannot mount a pod's volumes, from its events: the pod only says ContainerCreating. Pure.

Left out: what may pass by itself, such as a disk that another node still holds or a cache that is not filled yet.
"""

import re
from collections.abc import Iterable

from ptapi.failures import FailureClass
from ptkube.objects import condition
from ptkube.resources import Manifest
from ptoperator.failures.pod_creation import last_time
from ptoperator.failures.pod_failures import StartFailure

REASON = "FailedMount"
_ABSENT = re.compile(r"\b(configmap|secret|persistentvolumeclaim)s? \"[^\"]*\" not found|references non-existent", re.I)


def mount_failure(pod: Manifest, events: Iterable[Manifest]) -> StartFailure | None:
    """Return what a volume of the pod names and is not there, or None. events: of this pod, with the reason above."""
    newest = max(events, key=last_time, default=None)
    message = str((newest or {}).get("message") or "")
    if not _ABSENT.search(message):
        return None
    since = str((condition(pod, "PodScheduled") or {}).get("lastTransitionTime") or "")
    return StartFailure(FailureClass.CONFIG_ERROR, f"{REASON}: {message}", str(pod["metadata"]["name"]), since)
