"""What raw manifests say of themselves: the questions that every kind answers alike. Pure."""

from ptkube.resources import Manifest


def condition(item: Manifest, kind: str) -> Manifest | None:
    """Its condition of that type, whether it holds or not."""
    conditions = (item.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each.get("type") == kind), None)


def true_condition(item: Manifest, kind: str) -> Manifest | None:
    """Its condition of that type, if that is True."""
    matching = condition(item, kind)
    return matching if matching is not None and matching.get("status") == "True" else None


def holds(item: Manifest, kind: str) -> bool:
    """Whether its condition of that type is True."""
    return true_condition(item, kind) is not None


def is_deleting(item: Manifest) -> bool:
    """Whether it was asked to go, and is still there."""
    return bool(item["metadata"].get("deletionTimestamp"))


def label(item: Manifest, key: str) -> str:
    """Return the value of a label, empty if it is not set."""
    return str((item["metadata"].get("labels") or {}).get(key) or "")


def pod_phase(pod: Manifest) -> str:
    """`Pending` also before anybody has said so."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def container_statuses(pod: Manifest) -> list[Manifest]:
    """Of its init containers, then of the others."""
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
