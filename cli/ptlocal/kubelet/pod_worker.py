"""Run one pod on this node, from its first container to its last, as `lifecycle.advance` decides.

All methods run on the kubelet's single thread. `step` is called whenever something may have changed and returns when to
call again at the latest.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ptkube.objects import is_deleting
from ptkube.resources import Manifest
from ptkube.timestamps import seconds_between, timestamp
from ptlocal import processes
from ptlocal.kubelet.container.command import command_of, refuse_unpullable, termination_mount
from ptlocal.kubelet.container.container_run import ContainerRun, write_record
from ptlocal.kubelet.container.path_rewriting import Rewriter
from ptlocal.kubelet.container.value_sources import NotReady, References, environment
from ptlocal.kubelet.container.volumes import mounts_of, prepare
from ptlocal.kubelet.lifecycle import Next, Role, advance, restart_delay_s
from ptlocal.kubelet.pod_status import pod_status
from ptlocal.paths import PROCESS_RECORD, Layout

PREEMPT = "local.posttrain.dev/preempt"
"""Annotation: behave as if the node were preempted, with this many seconds of notice."""
_DEFAULT_GRACE_S = 30.0  # Kubernetes' default
_MEMORY_S = 0.5
"""A container with a memory limit is measured this often."""
_RETRY_S = (0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True)
class Stop:
    """Why a pod is stopped from outside, and how long its processes may take."""

    grace_s: float
    reason: str = ""
    message: str = ""
    fails: bool = False
    disruption: tuple[str, str] | None = None


_NODE_SHUTDOWN = ("TerminationByKubelet", "Pod was terminated in response to imminent node shutdown.")


def node_shutdown(grace_s: float) -> Stop:
    """Return the stop for a node shutdown: the pod fails through no fault of its own."""
    return Stop(grace_s, "Terminated", _NODE_SHUTDOWN[1], fails=True, disruption=_NODE_SHUTDOWN)


def own_grace_s(pod: Manifest) -> float:
    """Return the pod's terminationGracePeriodSeconds."""
    return float(pod["spec"].get("terminationGracePeriodSeconds", _DEFAULT_GRACE_S))


@dataclass(frozen=True)
class PodContext:
    """What a pod needs from its kubelet."""

    layout: Layout
    cluster_id: str
    base_env: dict[str, str]
    node: Callable[[], Manifest]
    references: Callable[[str], References]
    """Fetches a namespace's objects."""
    port_for: Callable[[Manifest, str, int], int]
    boot: float
    record_event: Callable[[Manifest, str, str, str], None]


class PodRun:
    """A pod's containers and their state. `pod` is the last observed object; `folder` outlives the kubelet."""

    def __init__(self, pod: Manifest, context: PodContext, wake: Callable[[], None]) -> None:
        self.pod = pod
        self.uid = str(pod["metadata"]["uid"])
        self.step_result = Next()
        self._context = context
        self._wake = wake
        self.folder = context.layout.pod(self.uid)
        self._stop: Stop | None = None
        self._stop_deadline = 0.0
        self._volumes: dict[str, Path] | None = None
        self._tries = 0
        self._last_error: NotReady | None = None
        self._started_at = (pod.get("status") or {}).get("startTime") or timestamp()
        self.containers = [*self._make("initContainers"), *self._make("containers")]

    # --- called by the kubelet

    @property
    def is_over(self) -> bool:
        """Return True if the pod has succeeded or failed."""
        return self.step_result.phase in ("Succeeded", "Failed")

    @property
    def is_alive(self) -> bool:
        """Return True if any of its processes runs."""
        return any(run.pid for run in self.containers)

    def request_stop(self, stop: Stop) -> None:
        """Stop the pod. The first reason is the one reported; a later, shorter grace period still applies."""
        deadline = time.monotonic() + stop.grace_s
        if self._stop is None:
            self._stop, self._stop_deadline = stop, deadline
        else:
            self._stop_deadline = min(self._stop_deadline, deadline)

    def mark_lost(self, message: str) -> None:
        """Mark everything as ended: the kubelet that ran the pod died."""
        status = self.pod.get("status") or {}
        old = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
        by_name = {entry["name"]: entry for entry in old}
        for run in self.containers:
            run.mark_lost(message, by_name.get(run.name))
        self.request_stop(node_shutdown(0))

    def step(self, pod: Manifest) -> float | None:
        """Do what is due now; return the seconds until the next call at the latest, or None."""
        self.pod = pod
        for run in self.containers:
            if run.collect():
                self._write_record()
        self._apply_stop_requests()
        waits = [self._past_active_deadline()]
        policy = pod["spec"].get("restartPolicy") or "Always"
        stopping = self._stop is not None
        step = advance([r.view() for r in self.containers], policy, stopping=stopping, now=time.monotonic())
        self._execute(step)
        waits += [step.again_s, self._enforce_grace(), self._enforce_memory(), self._retry_s()]
        # the reported phase includes what has just been started or stopped
        views = [r.view() for r in self.containers]
        self.step_result = advance(views, policy, stopping=stopping, now=time.monotonic())
        return min((w for w in waits if w is not None), default=None)

    def status(self) -> Manifest:
        """Return the pod's status for the API."""
        step, stop = self.step_result, self._stop
        inits = [r.status() for r in self.containers if r.role != "main"]
        mains = [r.status() for r in self.containers if r.role == "main"]
        over = self.is_over and stop is not None
        return pod_status(
            {"startTime": self._started_at, **(self.pod.get("status") or {})},
            "Failed" if over and stop and stop.fails else step.phase,
            inits,
            mains,
            initialized=step.initialized,
            now=timestamp(),
            reason=stop.reason if over and stop else "",
            message=stop.message if over and stop else "",
            disruption=stop.disruption if stop else None,
        )

    # --- steps

    def _make(self, field: str) -> list[ContainerRun]:
        return [
            ContainerRun(spec, _role(field, spec), self.folder, partial(self._log_file, spec["name"]))
            for spec in self.pod["spec"].get(field) or []
        ]

    def _log_file(self, container: str, restart: int) -> Path:
        return self._context.layout.container_log(self.uid, container, restart)

    def _apply_stop_requests(self) -> None:
        meta = self.pod["metadata"]
        if is_deleting(self.pod):
            grace_s = meta.get("deletionGracePeriodSeconds")
            self.request_stop(Stop(own_grace_s(self.pod) if grace_s is None else float(grace_s)))
        notice = (meta.get("annotations") or {}).get(PREEMPT)
        if notice is not None and not self.is_over and self._stop is None:
            grace_s = float(notice) if notice.replace(".", "", 1).isdigit() else own_grace_s(self.pod)
            self.request_stop(node_shutdown(grace_s))

    def _past_active_deadline(self) -> float | None:
        deadline_s = self.pod["spec"].get("activeDeadlineSeconds")
        if deadline_s is None or self.is_over:
            return None
        remaining_s = float(deadline_s) - seconds_between(self._started_at, timestamp())
        if remaining_s > 0:
            return remaining_s
        message = "Pod was active on the node longer than the specified deadline"
        self.request_stop(Stop(own_grace_s(self.pod), "DeadlineExceeded", message, fails=True))
        return None

    def _execute(self, step: Next) -> None:
        by_name = {run.name: run for run in self.containers}
        for name in step.stop:
            if by_name[name].terminate():
                self._context.record_event(self.pod, "Normal", "Killing", f"Stopping container {name}")
        for run in self.containers:
            if run.name in step.backing_off:
                delay_s = restart_delay_s(run.restarts)
                message = f"back-off {delay_s:.0f}s restarting failed container={run.name}"
                if run.waiting != ("CrashLoopBackOff", message):
                    self._context.record_event(self.pod, "Warning", "BackOff", message)
                run.waiting = ("CrashLoopBackOff", message)
            elif run.role == "main" and not step.initialized:
                run.waiting = ("PodInitializing", "")
        for name in step.start:
            try:
                self._start(by_name[name])
                self._tries, self._last_error = 0, None
            except NotReady as error:
                self._report_not_ready(by_name[name], error)

    def _start(self, run: ContainerRun) -> None:
        pod, context = self.pod, self._context
        refuse_unpullable(run.spec, first_try=self._tries == 0)
        node, refs = context.node(), context.references(pod["metadata"]["namespace"])
        if self._volumes is None:
            self._volumes = prepare(pod, node, self.folder / "volumes", context.layout.claims, refs)
        env = environment(pod, run.spec, node, refs)
        rewrite = Rewriter(
            mounts=[*mounts_of(run.spec, self._volumes, env), termination_mount(run.spec, run.termination_file)],
            subdomain=pod["spec"].get("subdomain") or "",
            namespace=pod["metadata"]["namespace"],
            port_for=partial(context.port_for, pod),
        )
        marks = {processes.CLUSTER_MARK: context.cluster_id, processes.POD_MARK: self.uid}
        command = command_of(pod, run.spec, env, rewrite, base={**context.base_env, **marks}, home=self.folder / "work")
        run.waiting = ("ContainerCreating", "")
        run.mounts = {mount.path.rstrip("/"): mount.local for mount in rewrite.mounts}
        try:
            if command.cwd.is_relative_to(self.folder):
                command.cwd.mkdir(parents=True, exist_ok=True)
            run.start(command.argv, command.env, command.cwd, self._wake)
        except OSError as error:  # no such working directory, arguments too long, process limit reached
            run.fail_to_start(f"cannot start in {command.cwd}: {error.strerror}")
        self._write_record()
        if run.pid:
            context.record_event(pod, "Normal", "Started", f"Started container {run.name}")

    def _report_not_ready(self, run: ContainerRun, error: NotReady) -> None:
        self._tries += 1
        self._last_error = error
        waiting = "ContainerCreating" if error.reason == "FailedMount" else error.reason
        run.waiting = (waiting, "" if error.reason == "FailedMount" else str(error))
        reason = error.reason if error.reason == "FailedMount" else "Failed"
        self._context.record_event(self.pod, "Warning", reason, str(error))

    def _retry_s(self) -> float | None:
        return _RETRY_S[min(self._tries, len(_RETRY_S)) - 1] if self._last_error and not self._stop else None

    def _enforce_grace(self) -> float | None:
        if self._stop is None or not self.is_alive:
            return None
        remaining_s = self._stop_deadline - time.monotonic()
        if remaining_s > 0:
            return remaining_s
        for run in self.containers:
            run.kill()
        return None

    def _enforce_memory(self) -> float | None:
        watched = [run.enforce_memory() for run in self.containers]
        return _MEMORY_S if any(watched) else None

    def _write_record(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_record(self.folder / PROCESS_RECORD, self._context.boot, self.containers)


def _role(field: str, spec: Manifest) -> Role:
    if field == "containers":
        return "main"
    return "sidecar" if spec.get("restartPolicy") == "Always" else "init"
