"""Run the cluster's controllers and the kubelet as threads of one process, against any API server.

    python -m ptlocal.controllers.manager --kubeconfig FILE --data DIR

On a cluster that has the real ones, ours step aside: no Job controller and no garbage collector next to a
kube-controller-manager, no scheduler next to a kube-scheduler, no JobSet controller next to JobSet's own.
"""

import argparse
import logging
import signal
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ptkube.client import Kube, NotFound
from ptkube.informer import Informer
from ptkube.resources import CONFIGMAPS, JOBS, JOBSETS, LEASES, NODES, PODS, SERVICES
from ptkube.timestamps import timestamp
from ptkube.workqueue import WorkQueue
from ptlocal.controllers.garbage_collector import GarbageCollector
from ptlocal.controllers.job.job_controller import JobController
from ptlocal.controllers.jobset.jobset_controller import JobSetController
from ptlocal.controllers.jobset.real_controller import jobset_controller_is_installed, lease_is_held
from ptlocal.controllers.scheduler import Scheduler
from ptlocal.kubelet.kubelet import Kubelet, KubeletSettings
from ptlocal.paths import Layout

log = logging.getLogger(__name__)

PARTS = ("jobset", "job", "gc", "scheduler", "kubelet")
_ORDERS = {signal.SIGTERM, signal.SIGINT}
_SYNC_S = 30.0


@dataclass
class Controllers:
    """The running parts; `stop` ends them in an order that leaves nothing half done."""

    kube: Kube
    kubelet: Kubelet | None
    names: list[str]
    stopping: threading.Event
    queues: list[WorkQueue[Any]] = field(default_factory=list)

    def stop(self, grace_s: float) -> bool:
        """Stop everything: no new pods, then each pod with its grace period; return True if all ended in time."""
        for queue in self.queues:
            queue.close()
        ended = self.kubelet.shut_down(grace_s) if self.kubelet else True
        if self.kubelet:
            self.kubelet.queue.close()
        self.stopping.set()
        self.kube.close()
        return ended

    def shorten_grace(self, grace_s: float) -> None:
        """Limit the remaining time of pods while `stop` runs."""
        if self.kubelet:
            self.kubelet.shorten_grace(grace_s)


def start(kube: Kube, settings: KubeletSettings, without: Collection[str] = ()) -> Controllers:
    """Start all of PARTS except those in `without` and those that the cluster already has."""
    stop = threading.Event()
    informers = {r: Informer(kube, r, stop) for r in (JOBSETS, JOBS, PODS, SERVICES, NODES)}
    for informer in informers.values():
        informer.start()
    for informer in informers.values():
        if not informer.synced.wait(_SYNC_S):
            raise TimeoutError(f"no list of {informer.resource.plural} from the API server within {_SYNC_S:.0f} s")
    running = Controllers(kube, None, [], stop)
    if "jobset" not in without and not jobset_controller_is_installed(kube, timestamp()):
        _add(running, JobSetController(kube, informers[JOBSETS], informers[JOBS], informers[SERVICES]).queue)
    has_manager = _has_controller_manager(kube)
    if "job" not in without and not has_manager:
        _add(running, JobController(kube, informers[JOBS], informers[PODS]).queue)
    if "gc" not in without and not has_manager:
        collector = GarbageCollector(kube, list(informers.values()), stop)
        _add(running, collector.queue, collector.start)
    if "scheduler" not in without and not _holds_lease(kube, "kube-scheduler"):
        _add(running, Scheduler(kube, informers[PODS], informers[NODES]).queue)
    if "kubelet" not in without:
        running.kubelet = Kubelet(kube, informers[PODS], settings)
        running.kubelet.start()
        running.names.append("kubelet")
    return running


def _add(running: Controllers, queue: WorkQueue[Any], begin: Callable[[], object] | None = None) -> None:
    (begin or queue.start)()
    running.queues.append(queue)
    running.names.append(queue.name)


def _has_controller_manager(kube: Kube) -> bool:
    """Return True if one holds its Lease or, without leader election, has published the cluster's CA."""
    if _holds_lease(kube, "kube-controller-manager"):
        return True
    try:
        kube.get(CONFIGMAPS, "kube-root-ca.crt", "kube-system")
    except NotFound:
        return False
    return True


def _holds_lease(kube: Kube, name: str) -> bool:
    try:
        return lease_is_held(kube.get(LEASES, name, "kube-system"), timestamp())
    except NotFound:
        return False


def main(argv: list[str] | None = None) -> None:
    """Run the controllers and the kubelet from the command line."""
    parser = argparse.ArgumentParser(prog="python -m ptlocal.controllers.manager", description=__doc__)
    parser.add_argument("--kubeconfig", help="default: KUBECONFIG, ~/.kube/config")
    parser.add_argument("--context")
    parser.add_argument("--data", type=Path, required=True, help="directory for pods' volumes and logs")
    parser.add_argument("--node-name", default="local")
    parser.add_argument("--without", action="append", default=[], choices=PARTS, help="leave this one out")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    args.data.mkdir(parents=True, exist_ok=True)
    settings = KubeletSettings(
        Layout(args.data), cluster_id=f"{args.data.resolve()}", node_name=args.node_name, serve_logs=True
    )
    running = start(Kube.load(args.kubeconfig, args.context), settings, without=args.without)
    log.info("running: %s", ", ".join(running.names))
    signal.sigwait(_ORDERS)
    running.stop(grace_s=60)


if __name__ == "__main__":
    main()
