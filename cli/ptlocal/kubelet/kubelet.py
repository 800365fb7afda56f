"""The kubelet stand-in: pods bound to its node become local processes, whose state becomes the pods' status.

One worker thread does everything, because processes die with the thread that started them (see exec_shim.py).
Left out, and reported in an Event of a pod that uses it: probes, lifecycle hooks, host ports. Images are not read;
CPU limits are counted by the scheduler and not enforced.
"""

import contextlib
import logging
import shutil
import time
from dataclasses import dataclass, field
from functools import partial

import psutil

from ptkube.client import Kube, NotFound
from ptkube.events import EventRecorder
from ptkube.informer import Informer
from ptkube.objects import is_deleting
from ptkube.resources import PODS, Manifest
from ptkube.workqueue import WorkQueue
from ptlocal import jobset_names
from ptlocal.kubelet import node as nodes
from ptlocal.kubelet.container.command import base_environment
from ptlocal.kubelet.log_server import serve_logs
from ptlocal.kubelet.pod_worker import PodContext, PodRun, Stop, node_shutdown, own_grace_s
from ptlocal.kubelet.ports import PortMap
from ptlocal.kubelet.references import references
from ptlocal.paths import PROCESS_RECORD, Layout
from ptlocal.processes import POD_MARK, kill_all, with_marker

log = logging.getLogger(__name__)

_LOST_MESSAGE = "The container could not be located after the embedded cluster stopped. It used to be Running"
_TERMINAL_PHASES = ("Succeeded", "Failed")
_KILL_S = 5.0  # for killed processes to end and for their last status to be written
_HEARTBEAT = "heartbeat"  # a key in addition to the pods' uids


@dataclass(frozen=True)
class KubeletSettings:
    """Settings of the kubelet."""

    layout: Layout
    cluster_id: str
    node_name: str = "local"
    capacity: nodes.Capacity = field(default_factory=nodes.Capacity.of_this_machine)
    serve_logs: bool = False
    """Serve `kubectl logs`; not needed with the embedded API server, which does that itself."""


class Kubelet:
    """Runs the pods of its node and reports their status."""

    def __init__(self, kube: Kube, pods: Informer, settings: KubeletSettings) -> None:
        self.queue: WorkQueue[str] = WorkQueue("kubelet", lambda key, _: self._reconcile(key))
        self._kube = kube
        self._pods = pods
        self._settings = settings
        self._events = EventRecorder(kube, "kubelet")
        self._ports = PortMap(settings.layout.ports_file, seed=settings.cluster_id)
        self._runs: dict[str, PodRun] = {}
        self._by_uid: dict[str, tuple[str, str]] = {}
        self._published: dict[str, Manifest] = {}
        self._shutting_down = False
        self._deadline = float("inf")
        self._node: Manifest = {}
        self._pod_context = PodContext(
            layout=settings.layout,
            cluster_id=settings.cluster_id,
            base_env=base_environment(),
            node=lambda: self._node,
            references=partial(references, kube),
            port_for=self._port_for,
            boot=psutil.boot_time(),
            record_event=self._events.record,
        )

    def start(self) -> None:
        """Register the node and start the worker thread."""
        s = self._settings
        log_port = serve_logs(s.layout, self._pods.get) if s.serve_logs else None
        self._node = nodes.register(self._kube, nodes.node_manifest(s.node_name, s.capacity, log_port))
        self._remove_stale_directories()
        self._pods.listen(self._pod_changed)
        self.queue.add(_HEARTBEAT)
        self.queue.start()

    def shut_down(self, limit_s: float) -> bool:
        """Stop every pod with its own grace period and report it; return True if all ended within the limit."""
        self._shutting_down = True
        self.shorten_grace(limit_s)
        while not self._all_reported() and time.monotonic() < self._deadline + _KILL_S:
            time.sleep(0.02)
        return self._all_reported()

    def shorten_grace(self, limit_s: float) -> None:
        """Limit the remaining time of pods that are being stopped."""
        self._deadline = min(self._deadline, time.monotonic() + limit_s)
        for uid in list(self._runs):
            self.queue.add(uid)

    def _all_reported(self) -> bool:
        phases = [self._published.get(uid, {}).get("phase") for uid in list(self._runs)]
        return all(phase in _TERMINAL_PHASES for phase in phases)

    # --- one pod

    def _reconcile(self, uid: str) -> float | None:
        if uid == _HEARTBEAT:
            return self._heartbeat()
        pod = self._find(uid)
        if pod is None:
            self._remove_pod(uid)
            return None
        run = self._runs.get(uid)
        if run is None:
            if (pod.get("status") or {}).get("phase") in _TERMINAL_PHASES:
                self._confirm_deletion(pod)
                return None
            if self._shutting_down:
                return None  # it waits for the next start of the cluster
            run = self._adopt(pod)
        if self._shutting_down and not run.is_over:
            run.request_stop(self._shutdown_stop(pod))
        was_over = run.is_over
        again_s = run.step(pod)
        if run.is_over and not was_over:
            kill_all(lambda: with_marker(POD_MARK, uid))  # processes that left their session end with the pod, too
        self._publish(run)
        if run.is_over:
            self._confirm_deletion(pod)
        return again_s

    def _shutdown_stop(self, pod: Manifest) -> Stop:
        return node_shutdown(max(0.0, min(own_grace_s(pod), self._deadline - time.monotonic())))

    def _adopt(self, pod: Manifest) -> PodRun:
        uid = pod["metadata"]["uid"]
        run = PodRun(pod, self._pod_context, wake=lambda: self.queue.add(uid))
        self._runs[uid] = run
        if (run.folder / PROCESS_RECORD).exists():
            run.mark_lost(_LOST_MESSAGE)
        else:
            self._report_unsupported(pod)
        return run

    def _publish(self, run: PodRun) -> None:
        status = run.status()
        if self._published.get(run.uid) == status:
            return
        meta = run.pod["metadata"]
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "status": status}
        try:
            self._pods.record(self._kube.patch(PODS, meta["name"], meta["namespace"], patch, subresource="status"))
        except NotFound:
            return  # removed by force; the informer will report it
        self._published[run.uid] = status

    def _confirm_deletion(self, pod: Manifest) -> None:
        """Delete a finished pod that is marked for deletion: the kubelet's request removes the object."""
        if not is_deleting(pod):
            return
        meta = pod["metadata"]
        with contextlib.suppress(NotFound):
            self._kube.delete(PODS, meta["name"], meta["namespace"], grace_s=0, uid=meta["uid"])

    def _remove_pod(self, uid: str) -> None:
        """Kill the pod's processes and remove its files: the object is deleted, perhaps by force."""
        run = self._runs.get(uid)
        if run is not None and run.is_alive:
            run.request_stop(Stop(0))
            run.step(run.pod)
        if run is not None:
            kill_all(lambda: with_marker(POD_MARK, uid))
        self._runs.pop(uid, None)
        self._published.pop(uid, None)
        shutil.rmtree(self._settings.layout.pod(uid), ignore_errors=True)
        self._ports.keep_only(_port_group(run.pod) for run in self._runs.values())

    # --- events

    def _pod_changed(self, kind: str, pod: Manifest) -> None:
        if pod["spec"].get("nodeName") != self._settings.node_name:
            return
        uid, meta = pod["metadata"]["uid"], pod["metadata"]
        if kind == "DELETED":
            self._by_uid.pop(uid, None)
        else:
            self._by_uid[uid] = (meta["namespace"], meta["name"])
        self.queue.add(uid)

    def _find(self, uid: str) -> Manifest | None:
        key = self._by_uid.get(uid)
        pod = self._pods.get(*key) if key else None
        return pod if pod and pod["metadata"]["uid"] == uid else None

    def _heartbeat(self) -> float:
        nodes.renew_lease(self._kube, self._settings.node_name)
        return nodes.HEARTBEAT_S

    # --- what pods need

    def _port_for(self, pod: Manifest, host: str, port: int) -> int:
        return self._ports.port_for(_port_group(pod), host, port)

    def _remove_stale_directories(self) -> None:
        """Remove directories of pods that were deleted while no kubelet ran."""
        uids = {pod["metadata"]["uid"] for pod in self._pods.items()}
        folder = self._settings.layout.pods
        for path in folder.iterdir() if folder.exists() else ():
            if path.name not in uids:
                shutil.rmtree(path, ignore_errors=True)

    def _report_unsupported(self, pod: Manifest) -> None:
        used = sorted(
            name
            for container in pod["spec"]["containers"]
            for name in ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle")
            if container.get(name)
        )
        if used:
            self._events.record(
                pod, "Warning", "Ignored", f"the embedded cluster does not act on: {', '.join(sorted(set(used)))}"
            )


def _port_group(pod: Manifest) -> str:
    """Return the group of pods that talk to each other: one JobSet attempt, else one owner, else the pod alone."""
    meta = pod["metadata"]
    labels = meta.get("labels") or {}
    if labels.get(jobset_names.UID):
        return f"{labels[jobset_names.UID]}/{labels.get(jobset_names.RESTART_ATTEMPT, '0')}"
    owners = [o["uid"] for o in meta.get("ownerReferences") or [] if o.get("controller")]
    return str(owners[0] if owners else meta["uid"])
