"""The one background process of an embedded cluster.

With --external, the API server is somebody else's: only controllers, kubelet and operator run here.

API server and operator are children, restarted when they die; controllers and kubelet are threads in here. SIGTERM
stops everything with every pod's own grace, SIGINT within seconds. If this process is killed, its children and the
pods die with it (Linux), and the next start sweeps up whatever is left.
"""

from __future__ import annotations

import argparse
import logging
import os
import queue
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from ptapi.crd import crd as posttrainjob_crd
from ptlocal import controllers
from ptlocal.apiserver import jobset_crd
from ptlocal.child import Child
from ptlocal.identity import cluster_id, sweep
from ptlocal.kubelet.kubelet import KubeletSettings
from ptlocal.kubelet.node import Capacity
from ptlocal.kubelet.podrun import base_environment
from ptlocal.kubelet.ports import free_port
from ptlocal.layout import Layout
from ptlocal.locks import Lock
from ptlocal.processes import CLUSTER_MARK
from ptlocal.state import Component, Phase, State, write_state
from ptoperator.kube import ApiError, Kube, NotFound
from ptoperator.resources import CRDS, Manifest

log = logging.getLogger("ptlocal.supervisor")

_START_S = 60.0
_CHILD_GRACE_S = 5.0
_HURRY_S = 2.0
_MOST_PATIENCE_S = 3600.0
_POLL_S = 0.03

CPU_ENV = "POSTTRAIN_LOCAL_CPU"
MEMORY_ENV = "POSTTRAIN_LOCAL_MEMORY"


class StartFailed(Exception):
    """A component did not come up; the message ends with its last words."""


@dataclass(frozen=True)
class Stop:
    grace_s: float


@dataclass(frozen=True)
class Died:
    child: Child


class Supervisor:
    def __init__(self, layout: Layout, *, external: bool, without: list[str]) -> None:
        self._layout = layout
        self._external = external
        self._without = without
        self._id = cluster_id(layout)
        # SimpleQueue, because signal handlers put into it
        self._inbox: queue.SimpleQueue[Stop | Died] = queue.SimpleQueue()
        self._operator_port = free_port()
        self._api_server = self._child("api server", "apiserver", ["-m", "ptlocal.apiserver", *self._api_arguments()])
        self._operator = self._child("operator", "operator", ["-m", "ptoperator"])
        self._controllers: controllers.Controllers | None = None
        self._kube: Kube | None = None
        self._phase: Phase = "starting"

    def run(self) -> int:
        signal.signal(signal.SIGTERM, lambda *_: self._inbox.put(Stop(_MOST_PATIENCE_S)))
        signal.signal(signal.SIGINT, lambda *_: self._inbox.put(Stop(_HURRY_S)))
        try:
            self._start()
        except (StartFailed, ApiError, TimeoutError) as error:
            log.error("start failed: %s", error)
            self._shut_down(_HURRY_S)
            self._tell("failed", str(error))
            return 1
        self._tell("ready")
        grace_s = self._watch()
        self._shut_down(grace_s)
        self._tell("stopped")
        return 0

    def _start(self) -> None:
        swept = sweep(self._layout)
        if swept:
            log.warning("killed %d processes that an earlier run left behind", swept)
        if not self._external:
            self._tell("starting", "API server")
            self._api_server.start(self._died)
        self._kube = self._await_api_server()
        self._tell("starting", "resource definitions")
        if not self._has_definition(jobset_crd.definition()):
            self._install(jobset_crd.definition())
        self._install(posttrainjob_crd())
        self._tell("starting", "controllers and node")
        settings = KubeletSettings(self._layout, self._id, capacity=_capacity(), serve_logs=self._external)
        self._controllers = controllers.start(self._kube, settings, without=self._without)
        if "operator" not in self._without:
            self._tell("starting", "operator")
            self._operator.start(self._died)
            self._await_operator()

    def _watch(self) -> float:
        """Until told to stop: keep the children alive. Returns how long pods may take to end."""
        while True:
            message = self._inbox.get()
            if isinstance(message, Stop):
                return message.grace_s
            child = message.child
            pause_s = child.pause_before_restart_s()
            log.warning("%s died with %s, started again in %.1f s", child.name, child.exit_code, pause_s)
            try:
                stop = self._next_stop(pause_s)
            except queue.Empty:
                child.start(self._died)
                self._tell("ready")
            else:
                return stop.grace_s

    def _next_stop(self, wait_s: float) -> Stop:
        """The next Stop within the time; deaths that arrive meanwhile wait their turn."""
        deadline = time.monotonic() + wait_s
        while True:
            message = self._inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            if isinstance(message, Stop):
                return message
            threading.Timer(0.05, self._inbox.put, (message,)).start()

    def _shut_down(self, grace_s: float) -> None:
        self._tell("stopping", "operator")
        self._operator.stop(_CHILD_GRACE_S)
        if self._controllers:
            self._tell("stopping", "pods")
            hurry = threading.Thread(target=self._listen_for_hurry, args=(self._controllers,), daemon=True)
            hurry.start()
            if not self._controllers.stop(grace_s):
                log.warning("some pods did not end in time and are killed")
        self._tell("stopping", "API server")
        self._api_server.stop(_CHILD_GRACE_S)
        sweep(self._layout)

    def _listen_for_hurry(self, running: controllers.Controllers) -> None:
        """A second, more urgent order while pods are ending."""
        while True:
            message = self._inbox.get()
            if isinstance(message, Stop):
                running.hurry(message.grace_s)

    # --- parts

    def _child(self, name: str, log_name: str, arguments: list[str]) -> Child:
        env = {
            **base_environment(),
            "KUBECONFIG": str(self._layout.kubeconfig),
            "POSTTRAIN_HTTP_PORT": str(self._operator_port),
            "POSTTRAIN_SHARED_FILESYSTEM": "true",
            "POSTTRAIN_PROGRESS_SECONDS": os.environ.get("POSTTRAIN_PROGRESS_SECONDS", "1"),
            "PYTHONUNBUFFERED": "1",
            CLUSTER_MARK: self._id,
        }
        return Child(name, [sys.executable, *arguments], env, self._layout.logs / f"{log_name}.log")

    def _api_arguments(self) -> list[str]:
        return ["--data", str(self._layout.data), "--port", "0", "--kubeconfig", str(self._layout.kubeconfig)]

    def _await_api_server(self) -> Kube:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            if not self._external:
                self._give_up_on_death(self._api_server)
            if self._layout.kubeconfig.exists():
                kube = Kube.load(str(self._layout.kubeconfig))
                try:
                    kube.request("GET", "/version")
                except ApiError:
                    kube.close()
                else:
                    return kube
            time.sleep(_POLL_S)
        raise StartFailed(f"the API server did not answer within {_START_S:.0f} s; see {self._layout.logs}")

    def _has_definition(self, definition: Manifest) -> bool:
        assert self._kube is not None
        try:
            self._kube.get(CRDS, definition["metadata"]["name"])
        except NotFound:
            return False
        return True

    def _install(self, definition: Manifest) -> None:
        assert self._kube is not None
        name = definition["metadata"]["name"]
        self._kube.apply(CRDS, definition, field_manager="ptctl-local")
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            conditions = self._kube.get(CRDS, name).get("status", {}).get("conditions") or []
            if any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
                return
            time.sleep(_POLL_S)
        raise StartFailed(f"the resource definition {name} was not established within {_START_S:.0f} s")

    def _await_operator(self) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            self._give_up_on_death(self._operator)
            try:
                with urlopen(f"http://127.0.0.1:{self._operator_port}/readyz", timeout=2) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(_POLL_S)
        raise StartFailed(f"the operator was not ready within {_START_S:.0f} s; see {self._layout.logs}/operator.log")

    def _give_up_on_death(self, child: Child) -> None:
        if not child.is_alive:
            raise StartFailed(f"the {child.name} ended with exit code {child.exit_code}:\n{child.last_words()}")

    def _died(self, child: Child) -> None:
        self._inbox.put(Died(child))

    def _tell(self, phase: Phase, message: str = "") -> None:
        self._phase = phase
        if phase != "failed":
            log.info("%s %s", phase, message)
        parts = [] if self._external else [self._api_server.component()]
        if self._controllers:
            parts.append(Component("controllers", os.getpid(), detail=", ".join(self._controllers.names)))
        if "operator" not in self._without:
            parts.append(self._operator.component())
        server = self._kube.access.server if self._kube else ""
        write_state(self._layout, State(phase, message, server, parts))


def _capacity() -> Capacity:
    machine = Capacity.of_this_machine()
    return Capacity(os.environ.get(CPU_ENV) or machine.cpu, os.environ.get(MEMORY_ENV) or machine.memory)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ptlocal.supervisor", description="Runs an embedded cluster.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--detach", action="store_true", help="go to the background at once")
    parser.add_argument("--external", action="store_true", help="the kubeconfig in DATA names the API server")
    parser.add_argument("--without", action="append", default=[], choices=[*controllers.PARTS, "operator"])
    arguments = parser.parse_args()
    layout = Layout(arguments.data)
    if arguments.detach and os.fork():
        os._exit(0)
    lock = Lock(layout.pid_file)
    if not lock.take(wait_s=2.0):
        raise SystemExit("a supervisor for this data directory is running already")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    code = Supervisor(layout, external=arguments.external, without=arguments.without).run()
    lock.release()
    # threads that wait on sockets must not keep the process
    logging.shutdown()
    os._exit(code)


if __name__ == "__main__":
    main()
