"""Decide which container starts, restarts or stops next, and the phase of the pod. Pure.

Init containers run one after another; a native sidecar (an init container with restartPolicy Always) only has to have
started, is restarted when it ends, and is stopped after the main containers. No probes: running is ready.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ptkube.backoff import pause_s

Role = Literal["init", "sidecar", "main"]

_FIRST_PAUSE_S = 10.0  # CrashLoopBackOff, as in Kubernetes: the first restart is immediate
_LONGEST_PAUSE_S = 300.0


@dataclass(frozen=True)
class Container:
    """A container. `exit_code` is None while it runs or before it starts; `ended_at` is its last end (monotonic)."""

    name: str
    role: Role
    running: bool = False
    exit_code: int | None = None
    ended_at: float = 0.0
    restarts: int = 0

    @property
    def started(self) -> bool:
        """Return True if the container has started at least once."""
        return self.running or self.exit_code is not None


@dataclass
class Next:
    """What to do with a pod's containers now, by name, and the resulting phase.

    `backing_off` wait for their next start; `again_s` is when to call again at the latest, None if not needed.
    """

    start: list[str] = field(default_factory=list)
    stop: list[str] = field(default_factory=list)
    backing_off: list[str] = field(default_factory=list)
    phase: Literal["Pending", "Running", "Succeeded", "Failed"] = "Pending"
    again_s: float | None = None
    initialized: bool = False


def advance(containers: Sequence[Container], restart_policy: str, *, stopping: bool, now: float) -> Next:
    """Return the next actions. `containers` are in the order of the pod spec, init containers first."""
    inits = [c for c in containers if c.role != "main"]
    mains = [c for c in containers if c.role == "main"]
    sidecars = [c for c in inits if c.role == "sidecar"]
    step = Next()
    step.initialized = all(c.exit_code == 0 if c.role == "init" else c.started for c in inits)
    finished = _finished(inits, mains, restart_policy)
    if stopping or finished:
        _wind_down([c for c in containers if c.role != "sidecar"], sidecars, step)
        if not any(c.running for c in containers):
            ok = mains and all(c.exit_code == 0 for c in mains)
            step.phase = "Succeeded" if ok else "Failed"
        else:
            step.phase = "Running" if step.initialized else "Pending"
        return step
    if _start_inits(inits, restart_policy, step, now):
        for container in mains:
            _start_or_restart(container, restart_policy, step, now)
    step.phase = "Running" if step.initialized and all(c.started for c in mains) else "Pending"
    return step


def _finished(inits: list[Container], mains: list[Container], policy: str) -> bool:
    """Return True if nothing will start again: all main containers are done, or an init container failed for good."""
    if policy == "Never" and any(c.role == "init" and c.exit_code not in (None, 0) for c in inits):
        return True
    return all(c.exit_code is not None and not _restarts(c, policy) for c in mains)


def _wind_down(workers: list[Container], sidecars: list[Container], step: Next) -> None:
    running = [c.name for c in workers if c.running]
    step.stop = running or [c.name for c in reversed(sidecars) if c.running]


def _start_inits(inits: list[Container], policy: str, step: Next, now: float) -> bool:
    """Start init containers; return True once the main containers may run."""
    for container in inits:
        if container.role == "sidecar":
            _start_or_restart(container, "Always", step, now)
            continue
        if container.exit_code == 0:
            continue
        if not container.running:
            _start_or_restart(container, "OnFailure" if policy == "Always" else policy, step, now)
        return False
    return True


def _start_or_restart(container: Container, policy: str, step: Next, now: float) -> None:
    if container.running:
        return
    if container.exit_code is None:
        step.start.append(container.name)
    elif _restarts(container, policy):
        left_s = container.ended_at + restart_delay_s(container.restarts) - now
        if left_s <= 0:
            step.start.append(container.name)
        else:
            step.backing_off.append(container.name)
            step.again_s = min(left_s, step.again_s or left_s)


def _restarts(container: Container, policy: str) -> bool:
    return policy == "Always" or (policy == "OnFailure" and container.exit_code != 0)


def restart_delay_s(restarts: int) -> float:
    """Return the back-off before the next restart in seconds."""
    return pause_s(restarts, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
