"""Reads of a raw manifest that are the same for every kind: conditions, labels, deletion, a pod's state. Pure."""

from ptkube.resources import Manifest


def condition(item: Manifest, kind: str) -> Manifest | None:
    """Return the object's condition of that type, whatever its status; None if it has none."""
    conditions = (item.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each.get("type") == kind), None)


def true_condition(item: Manifest, kind: str) -> Manifest | None:
    """Return the object's condition of that type if it is True, else None."""
    matching = condition(item, kind)
    return matching if matching is not None and matching.get("status") == "True" else None


def holds(item: Manifest, kind: str) -> bool:
    """Return True if the object's condition of that type is True."""
    return true_condition(item, kind) is not None


def is_deleting(item: Manifest) -> bool:
    """Return True if the object's deletion was requested, and it is still there."""
    return bool(item["metadata"].get("deletionTimestamp"))


def label(item: Manifest, key: str) -> str:
    """Return the value of a label, empty if it is not set."""
    return str((item["metadata"].get("labels") or {}).get(key) or "")


def pod_phase(pod: Manifest) -> str:
    """Return the pod's phase; `Pending` before it has one."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def container_statuses(pod: Manifest) -> list[Manifest]:
    """Return the statuses of the pod's init containers, then of the others."""
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
