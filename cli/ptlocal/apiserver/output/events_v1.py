"""events.k8s.io/v1 as another view of core/v1 events: the same objects with some fields renamed."""

from typing import Any

Manifest = dict[str, Any]
_RENAMED = {  # core/v1 -> events.k8s.io/v1
    "message": "note",
    "involvedObject": "regarding",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
_BACK = {new: old for old, new in _RENAMED.items()}


def to_new(event: Manifest) -> Manifest:
    """Convert a core/v1 event to events.k8s.io/v1."""
    return {_RENAMED.get(key, key): value for key, value in event.items()}


def to_core(event: Manifest) -> Manifest:
    """Convert an events.k8s.io/v1 event to core/v1."""
    return {_BACK.get(key, key): value for key, value in event.items()}
