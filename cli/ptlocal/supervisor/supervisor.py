"""The background process of an embedded cluster.

With --external, the API server is not part of it: only controllers, kubelet and operator run here.

API server and operator are children, restarted when they die; controllers and kubelet are threads. SIGTERM stops
everything with every pod's own grace period, SIGINT within seconds. If this process is killed, its children and the
pods die with it (Linux), and the next start kills whatever is left.
"""

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

from ptapi.crd.definition import crd as posttrainjob_crd
from ptkube.client import ApiError, Kube
from ptlocal.apiserver import jobset_crd
from ptlocal.controllers import manager
from ptlocal.kubelet.container.command import base_environment
from ptlocal.kubelet.kubelet import KubeletSettings
from ptlocal.kubelet.node import Capacity
from ptlocal.kubelet.ports import free_port
from ptlocal.locks import Lock
from ptlocal.paths import Layout
from ptlocal.processes import CLUSTER_MARK
from ptlocal.supervisor import readiness
from ptlocal.supervisor.child import Child
from ptlocal.supervisor.identity import cluster_id, kill_leftovers
from ptlocal.supervisor.readiness import StartFailed
from ptlocal.supervisor.state import Component, Phase, State, write_state

log = logging.getLogger("ptlocal.supervisor.supervisor")

_STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}
_CHILD_GRACE_S = 5.0
_SHORT_GRACE_S = 2.0
_LONGEST_GRACE_S = 3600.0

CPU_ENV = "POSTTRAIN_LOCAL_CPU"
MEMORY_ENV = "POSTTRAIN_LOCAL_MEMORY"


@dataclass(frozen=True)
class Stop:
    """Message to the main loop: stop, with this grace period for pods."""

    grace_s: float


@dataclass(frozen=True)
class Died:
    """Message to the main loop: a child died."""

    child: Child


class StopRequested(Exception):
    """A stop was requested before the cluster was up."""


class Supervisor:
    """Starts the parts of the cluster, keeps them alive and stops them."""

    def __init__(self, layout: Layout, *, external: bool, without: list[str]) -> None:
        self._layout = layout
        self._external = external
        self._without = without
        self._id = cluster_id(layout)
        self._inbox: queue.SimpleQueue[Stop | Died] = queue.SimpleQueue()
        self._operator_port = free_port()
        self._api_server = self._child("api server", "apiserver", ["-m", "ptlocal.apiserver", *self._api_arguments()])
        self._operator = self._child("operator", "operator", ["-m", "ptoperator"])
        self._controllers: manager.Controllers | None = None
        self._kube: Kube | None = None
        self._stop_requested = threading.Event()

    def run(self) -> int:
        """Run the cluster until a signal stops it; return the exit code."""
        threading.Thread(target=self._wait_for_signals, name="signals", daemon=True).start()
        try:
            self._start()
        except StopRequested:
            self._shut_down(_SHORT_GRACE_S)
            self._write_phase("stopped")
            return 0
        except (StartFailed, ApiError, TimeoutError) as error:
            log.error("start failed: %s", error)
            self._shut_down(_SHORT_GRACE_S)
            self._write_phase("failed", str(error))
            return 1
        self._write_phase("ready")
        grace_s = self._watch()
        self._shut_down(grace_s)
        self._write_phase("stopped")
        return 0

    def _wait_for_signals(self) -> None:
        """Wait for signals instead of handling them: a handler may be late when all threads are blocked in locks."""
        while True:
            number = signal.sigwait(_STOP_SIGNALS)
            self._stop_requested.set()
            self._inbox.put(Stop(_SHORT_GRACE_S if number == signal.SIGINT else _LONGEST_GRACE_S))

    def _start(self) -> None:
        killed = kill_leftovers(self._layout)
        if killed:
            log.warning("killed %d processes left by an earlier run", killed)
        if not self._external:
            self._write_phase("starting", "API server")
            self._api_server.start(self._on_death)
        kubeconfig = self._layout.kubeconfig
        self._kube = readiness.api_server(kubeconfig, lambda: self._check_alive(self._api_server))
        self._write_phase("starting", "resource definitions")
        readiness.install_if_missing(self._kube, jobset_crd.definition())
        readiness.install(self._kube, posttrainjob_crd())
        self._write_phase("starting", "controllers and node")
        settings = KubeletSettings(self._layout, self._id, capacity=_capacity(), serve_logs=self._external)
        self._controllers = manager.start(self._kube, settings, without=self._without)
        if "operator" not in self._without:
            self._write_phase("starting", "operator")
            self._operator.start(self._on_death)
            readiness.operator(self._operator_port, lambda: self._check_alive(self._operator))

    def _watch(self) -> float:
        """Keep the children alive until a stop is requested; return the grace period for pods in seconds."""
        restart_at: dict[Child, float] = {}
        while True:
            wait_s = max(0.0, min(restart_at.values()) - time.monotonic()) if restart_at else None
            try:
                message = self._inbox.get(timeout=wait_s)
            except queue.Empty:
                self._restart([child for child, at in restart_at.items() if at <= time.monotonic()], restart_at)
                continue
            if isinstance(message, Stop):
                return message.grace_s
            pause_s = message.child.next_restart_delay_s()
            log.warning("%s exited with %s; restarting in %.1f s", message.child.name, message.child.exit_code, pause_s)
            restart_at[message.child] = time.monotonic() + pause_s

    def _restart(self, children: list[Child], restart_at: dict[Child, float]) -> None:
        for child in children:
            del restart_at[child]
            child.start(self._on_death)
        self._write_phase("ready")

    def _shut_down(self, grace_s: float) -> None:
        self._write_phase("stopping", "operator")
        self._operator.stop(_CHILD_GRACE_S)
        if self._controllers:
            self._write_phase("stopping", "pods")
            shortener = threading.Thread(target=self._shorten_grace_on_request, args=(self._controllers,), daemon=True)
            shortener.start()
            if not self._controllers.stop(grace_s):
                log.warning("some pods did not end in time; killing them")
        self._write_phase("stopping", "API server")
        self._api_server.stop(_CHILD_GRACE_S)
        kill_leftovers(self._layout)

    def _shorten_grace_on_request(self, running: manager.Controllers) -> None:
        """Shorten the grace period if a second, more urgent stop arrives while pods are ending."""
        while True:
            message = self._inbox.get()
            if isinstance(message, Stop):
                running.shorten_grace(message.grace_s)

    # --- parts

    def _child(self, name: str, log_name: str, arguments: list[str]) -> Child:
        env = {
            **base_environment(),
            "KUBECONFIG": str(self._layout.kubeconfig),
            "POSTTRAIN_HTTP_HOST": "127.0.0.1",
            "POSTTRAIN_HTTP_PORT": str(self._operator_port),
            "POSTTRAIN_SHARED_FILESYSTEM": "true",
            "POSTTRAIN_PROGRESS_SECONDS": os.environ.get("POSTTRAIN_PROGRESS_SECONDS", "1"),
            "PYTHONUNBUFFERED": "1",
            CLUSTER_MARK: self._id,
        }
        return Child(name, [sys.executable, *arguments], env, self._layout.logs / f"{log_name}.log")

    def _api_arguments(self) -> list[str]:
        return ["--data", str(self._layout.data), "--port", "0", "--kubeconfig", str(self._layout.kubeconfig)]

    def _check_alive(self, child: Child) -> None:
        if self._stop_requested.is_set():
            raise StopRequested
        if not child.is_alive and not (self._external and child is self._api_server):
            raise StartFailed(f"the {child.name} exited with code {child.exit_code}:\n{child.last_log_lines()}")

    def _on_death(self, child: Child) -> None:
        self._inbox.put(Died(child))

    def _write_phase(self, phase: Phase, message: str = "") -> None:
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


def _lock(layout: Layout) -> Lock:
    lock = Lock(layout.pid_file)
    if not lock.acquire(wait_s=2.0):
        raise SystemExit("a supervisor for this data directory is already running")
    return lock


def _lock_in_background(layout: Layout, caller: int) -> Lock:
    """Fork and return in the child. The parent exits once the child holds the lock, with 1 if it never does.

    If the caller is killed before that, the cluster stops: it can be stopped only once it holds the lock.
    """
    reader, writer = os.pipe()
    if child := os.fork():
        os.close(writer)
        is_locked = os.read(reader, 1)
        if os.getppid() != caller:
            os.kill(child, signal.SIGINT)
        os._exit(0 if is_locked else 1)
    os.close(reader)
    lock = _lock(layout)
    os.write(writer, b"+")
    os.close(writer)
    return lock


def main() -> None:
    """Run the supervisor from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m ptlocal.supervisor.supervisor", description="Run an embedded cluster."
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--detach", type=int, metavar="PID", help="go to the background at once; PID: the caller's")
    parser.add_argument("--external", action="store_true", help="use the API server of the kubeconfig in DATA")
    parser.add_argument("--without", action="append", default=[], choices=[*manager.PARTS, "operator"])
    arguments = parser.parse_args()
    layout = Layout(arguments.data)
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)  # in every thread; exec_shim.py unblocks them for children
    lock = _lock_in_background(layout, arguments.detach) if arguments.detach else _lock(layout)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    code = Supervisor(layout, external=arguments.external, without=arguments.without).run()
    lock.release()
    # exit even if threads still wait on sockets
    logging.shutdown()
    os._exit(code)


if __name__ == "__main__":
    main()
