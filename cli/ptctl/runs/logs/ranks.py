"""The trainer's processes of a job, from the pods of a cluster: rank, attempt, and whether it has started."""

from collections.abc import Sequence
from dataclasses import dataclass

from ptctl.jobs.view import part
from ptkube.objects import label
from ptkube.resources import Manifest
from ptoperator.kube import labels
from ptoperator.kube.names import CONTAINER, SERVICE
from ptoperator.render.pods.environment_variables import HOSTS_PER_SLICE


@dataclass(frozen=True)
class Rank:
    """One container of the trainer. `attempt` counts from 1."""

    number: int
    attempt: int
    pod: str
    container: str
    uid: str
    has_started: bool
    waiting_for: str

    @property
    def key(self) -> tuple[str, str]:
        """Return what identifies the container, also among attempts of the same rank."""
        return self.uid, self.container


def ranks(pods: Sequence[Manifest], role: str = CONTAINER) -> list[Rank]:
    """Return every rank of these pods, by attempt and number. role: `trainer`, `sampler`, or a service's name."""
    every_rank = [rank for pod in pods for rank in _ranks_of(pod, role)]
    return sorted(every_rank, key=lambda rank: (rank.attempt, rank.number))


def _ranks_of(pod: Manifest, role: str) -> list[Rank]:
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    names = [c["name"] for c in spec["containers"] if _is_of_role(pod, c["name"], role)]
    host = _index(meta, labels.COMPLETION_INDEX)
    first = (_index(meta, labels.JOB_INDEX) * _hosts(spec) + host) * len(names)
    states = {state["name"]: state for state in status.get("containerStatuses") or []}
    return [
        Rank(
            number=first + index,
            attempt=_index(meta, labels.RESTART_ATTEMPT) + 1,
            pod=meta["name"],
            container=name,
            uid=str(meta.get("uid") or meta["name"]),
            has_started=_has_started(states.get(name), status),
            waiting_for=_waiting_for(states.get(name), status),
        )
        for index, name in enumerate(names)
    ]


def _is_of_role(pod: Manifest, container: str, role: str) -> bool:
    if container == SERVICE:
        return label(pod, labels.REPLICATED_JOB_NAME) == role
    return container == role or container.startswith(f"{role}-")


def _index(meta: Manifest, key: str) -> int:
    text = part(meta, "labels", key, missing="") or part(meta, "annotations", key, missing="0")
    return int(text) if str(text).isdigit() else 0


def _hosts(spec: Manifest) -> int:
    env = {variable["name"]: variable.get("value") for variable in spec["containers"][0].get("env") or []}
    return int(env.get(HOSTS_PER_SLICE) or 1)


def _has_started(state: Manifest | None, status: Manifest) -> bool:
    if state is None:
        return status.get("phase") in ("Running", "Succeeded", "Failed")
    now = state.get("state") or {}
    return "running" in now or "terminated" in now or bool(state.get("restartCount"))


def _waiting_for(state: Manifest | None, status: Manifest) -> str:
    """Return why the container does not run yet: its own reason, or why the pod is not scheduled."""
    waiting = part(state or {}, "state", "waiting", missing={})
    if waiting:
        return ": ".join(filter(None, (waiting.get("reason"), waiting.get("message"))))
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return ": ".join(filter(None, (condition.get("reason"), condition.get("message"))))
    return str(status.get("phase") or "Pending")
