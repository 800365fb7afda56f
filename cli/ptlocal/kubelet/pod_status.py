"""Build the status of a pod for the API from the state of its containers. Pure."""

from collections.abc import Sequence

from ptkube.resources import Manifest

ADDRESS = "127.0.0.1"


def pod_status(
    old: Manifest,
    phase: str,
    init_statuses: Sequence[Manifest],
    statuses: Sequence[Manifest],
    *,
    initialized: bool,
    now: str,
    reason: str = "",
    message: str = "",
    disruption: tuple[str, str] | None = None,
) -> Manifest:
    """Return the pod's status. `disruption` is the reason and message of a DisruptionTarget condition to add."""
    done = phase in ("Succeeded", "Failed")
    ready = not done and bool(statuses) and all(s["ready"] for s in statuses)
    why = "PodCompleted" if phase == "Succeeded" else "PodFailed" if phase == "Failed" else "ContainersNotReady"
    unready = [s["name"] for s in statuses if not s["ready"]]
    detail = "" if done or ready else f"containers with unready status: [{' '.join(unready)}]"
    conditions = [
        _condition("PodReadyToStartContainers", not done),
        _condition("Initialized", initialized, "" if initialized else "ContainersNotInitialized"),
        _condition("Ready", ready, "" if ready else why, detail),
        _condition("ContainersReady", ready, "" if ready else why, detail),
        _condition("PodScheduled", True),
    ]
    if disruption:
        conditions.append(_condition("DisruptionTarget", True, *disruption))
    status: Manifest = {
        "phase": phase,
        "conditions": _merge_conditions(old.get("conditions") or [], conditions, now),
        "hostIP": ADDRESS,
        "hostIPs": [{"ip": ADDRESS}],
        "podIP": ADDRESS,
        "podIPs": [{"ip": ADDRESS}],
        "startTime": old.get("startTime") or now,
        "containerStatuses": list(statuses),
        "reason": reason or None,
        "message": message or None,
    }
    if init_statuses:
        status["initContainerStatuses"] = list(init_statuses)
    return status


def _condition(kind: str, is_true: bool, reason: str = "", message: str = "") -> Manifest:
    condition = {"type": kind, "status": "True" if is_true else "False"}
    if reason:
        condition["reason"] = reason
    if message:
        condition["message"] = message
    return condition


def _merge_conditions(old: list[Manifest], new: list[Manifest], now: str) -> list[Manifest]:
    """Return the new conditions with the old transition times where the status is unchanged; keep foreign ones."""
    old_by_type = {c["type"]: c for c in old}
    merged = []
    for condition in new:
        before = old_by_type.pop(condition["type"], None)
        same = before is not None and before["status"] == condition["status"]
        since = before.get("lastTransitionTime") if same and before else None
        merged.append({**condition, "lastProbeTime": None, "lastTransitionTime": since or now})
    return merged + list(old_by_type.values())
