"""Assemble the running operator: client, cache, queue, reconciler and endpoints."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence

from ptkube.client import Kube
from ptkube.errors import ApiError
from ptkube.objects import label
from ptkube.resources import JOBSETS, PODS, POSTTRAINJOBS, Manifest
from ptkube.workqueue import WorkQueue
from ptoperator.capacity.cloud import CloudProvider
from ptoperator.capacity.gke.leader_guard import LeaderOnlyCloud
from ptoperator.controller.leader_election import Leadership
from ptoperator.controller.orphan_collector import OrphanCollector
from ptoperator.controller.reconciler import Reconciler
from ptoperator.kube import labels
from ptoperator.kube.audited_client import Client
from ptoperator.kueue.admission_check import mark_active
from ptoperator.monitoring.http_server import Endpoints
from ptoperator.monitoring.job_gauges import JobNumbers
from ptoperator.monitoring.metrics import Metrics
from ptoperator.observe.cache import JobCache, Key
from ptoperator.observe.memory_estimate import Estimates
from ptoperator.observe.watch_caches import Copies, empty_copy, informers, refusal_informers
from ptoperator.settings import Settings

logger = logging.getLogger(__name__)

_SETTLE_S = 0.5  # a pod that gets its node, starts and is counted by its JobSet is one look
_PAUSES_S = (0.2, 60.0)
_UNSYNCED_S = 0.2  # until the first lists of all kinds are there
_STOP_S = 10.0  # for reconciles that run when the operator is told to stop


class Application:
    """Holds the parts of the operator and receives kopf's events, in the event loop; reconciles run in threads.

    The events of JobSets and pods come in the threads of their informers; those of refused creations queue nothing.
    """

    def __init__(
        self,
        kube: Kube,
        settings: Settings,
        cloud: CloudProvider | None = None,
        namespaces: Sequence[str] = (),
        identity: str = "",
    ) -> None:
        self.kube = kube
        self.settings = settings
        self.cache = JobCache()
        self.metrics = Metrics(self._numbers, cloud.last if cloud else lambda: None)
        self.leadership: Leadership | None = None
        if settings.leader_namespace:
            leases = Client(kube, self.metrics.on_call)
            self.leadership = Leadership(leases, settings.leader_namespace, identity, self._on_leading)
        self._stopping = threading.Event()
        self._informers = informers(kube, namespaces, self._stopping)
        self._jobs = empty_copy(POSTTRAINJOBS)
        self._refusals = refusal_informers(kube, namespaces, self._stopping)
        self._copies = Copies({(POSTTRAINJOBS, ""): self._jobs, **self._informers}, self._refusals)
        client = Client(kube, self.metrics.on_call, self._check, self._copies.record)
        cloud = LeaderOnlyCloud(cloud, self._check) if cloud else None
        self.reconciler = Reconciler(
            client,
            self._copies,
            self.cache,
            settings,
            now=kube.now,
            cloud=cloud,
            namespaces=namespaces,
            on_report=self.metrics.on_report,
            estimate=Estimates().of,
        )
        self._client = client
        self.orphan_collector = self._orphan_collector(client, cloud, namespaces) if cloud else None
        self.queue = WorkQueue[Key](
            "reconcile",
            self._reconcile,
            workers=settings.workers,
            settle_s=_SETTLE_S,
            pauses_s=_PAUSES_S,
            on_done=self.metrics.on_reconcile,
        )
        self.endpoints = Endpoints(settings.http_host, settings.http_port, self.metrics, self.why_not_alive)
        self._answered = time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []

    def _orphan_collector(self, client: Client, cloud: CloudProvider, namespaces: Sequence[str]) -> OrphanCollector:
        now, on_sweep = self.kube.now, self.metrics.on_sweep
        return OrphanCollector(client, cloud, self.settings, namespaces, now, on_sweep, on_leaving=self._add)

    async def start(self) -> None:
        """Start the watches, the endpoints, the leader election and the periodic tasks."""
        self._watch()
        self.queue.start()
        await self.endpoints.start()
        if self.leadership:
            self.leadership.start()
        else:
            self.metrics.on_leading(True)
        self._tasks.append(asyncio.create_task(self._keep_probing()))
        keep = self._keep(self._mark_checks, self.settings.queue_seconds, "Kueue's checks were not marked active")
        self._tasks.append(asyncio.create_task(keep))
        if self.orphan_collector:
            keep = self._keep(
                self.orphan_collector.collect, self.settings.sweep_seconds, "orphaned node pools were not collected"
            )
            self._tasks.append(asyncio.create_task(keep))
        logger.info("posttrain operator serves %s", self.kube.access.server)

    async def stop(self) -> None:
        """Stop the watches and periodic tasks, let running reconciles finish and release the lease."""
        self._stopping.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.to_thread(self.queue.close, _STOP_S)
        if self.leadership:
            await asyncio.to_thread(self.leadership.stop)
        await self.endpoints.stop()
        self.kube.close()

    def _watch(self) -> None:
        handlers = {JOBSETS: self.on_child, PODS: self.on_pod}
        for (resource, _), informer in self._informers.items():
            informer.listen(handlers[resource])
            informer.start()
        for informer in self._refusals:
            informer.start()

    def on_job(self, kind: str | None, job: Manifest) -> None:
        """Handle a PostTrainJob that was listed (None), added, modified or deleted."""
        self._note_answer()
        job = self._jobs.take(kind or "MODIFIED", job)
        key = (str(job["metadata"]["namespace"]), str(job["metadata"]["name"]))
        if kind == "DELETED":
            self.cache.forget(key)
            self._add_next_in_queue()
            return
        self.cache.note_job(job)
        self._add_next_in_queue()
        if not self.cache.is_own_write(job):
            self._add(key)

    def on_child(self, kind: str, child: Manifest) -> None:
        """Queue the job of a JobSet or pod that changed."""
        self._note_answer()
        name = label(child, labels.JOB)
        if name:
            self._add((str(child["metadata"]["namespace"]), name))

    def on_pod(self, kind: str, pod: Manifest) -> None:
        """Record why a pod failed and queue its job."""
        self.cache.note_pod(pod)
        self.on_child(kind, pod)

    def why_not_alive(self) -> str:
        """Return why this process should be restarted; empty while it is healthy."""
        silence_s = time.monotonic() - self._answered
        if silence_s > self.settings.silence_seconds:
            return f"the API server has not answered for {silence_s:.0f} seconds"
        return ""

    @property
    def leads(self) -> bool:
        """Return True if this replica works. Others follow all events, so that they can take over at once."""
        return self.leadership is None or self.leadership.leads

    def _add(self, key: Key) -> None:
        if self.leads:
            self.queue.add(key)

    def _add_next_in_queue(self) -> None:
        """Queue the jobs that may have reached the head of their queue."""
        for key in self.cache.next_in_queue():
            self._add(key)

    def _on_leading(self, leads: bool) -> None:
        self.metrics.on_leading(leads)
        if leads:
            self._take_over()

    def _take_over(self) -> None:
        """Queue every job: the previous leader may have left work half done."""
        self.cache.doubt_turns()
        for key in self.cache.known_jobs():
            self.cache.remember(key, None)
            self.queue.add(key)

    def _check(self) -> None:
        if self.leadership is not None:
            self.leadership.check()

    def _numbers(self) -> list[JobNumbers]:
        """Return the jobs' numbers on the leader only: two replicas would count every job twice."""
        return self.cache.numbers() if self.leads else []

    def _reconcile(self, key: Key, has_event: bool) -> float | None:
        if not self.leads:
            return None
        if not self._copies.are_synced(key[0]):
            return _UNSYNCED_S
        began = time.thread_time()
        try:
            again = self.reconciler.reconcile(key, has_event=has_event)
        finally:
            self.metrics.on_cpu(time.thread_time() - began)
        self._note_answer()
        self._add_next_in_queue()
        return again

    def _note_answer(self) -> None:
        self._answered = time.monotonic()

    def _mark_checks(self) -> None:
        mark_active(self._client, self.kube.now())

    async def _keep(self, do: Callable[[], None], pause_s: float, otherwise: str) -> None:
        """Run a periodic task on the leader."""
        while True:
            await asyncio.sleep(pause_s)
            if not self.leads:
                continue
            try:
                await asyncio.to_thread(do)
            except ApiError as error:
                logger.warning("%s: %s", otherwise, error)

    async def _keep_probing(self) -> None:
        """Ask the API server for its version while no event arrives."""
        pause_s = max(1.0, self.settings.silence_seconds / 5)
        while True:
            await asyncio.sleep(pause_s)
            if time.monotonic() - self._answered < pause_s:
                continue
            try:
                await asyncio.to_thread(self.kube.request, "GET", "/version")
                self._note_answer()
            except ApiError as error:
                logger.warning("the API server does not answer: %s", error)
