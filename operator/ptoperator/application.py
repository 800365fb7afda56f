"""The running operator: client, memory, queue, reconciler and endpoints, put together once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from ptoperator import labels
from ptoperator.apierrors import ApiError
from ptoperator.capacity.cloud import CloudProvider
from ptoperator.endpoints import Endpoints
from ptoperator.kube import Kube
from ptoperator.memory import Key, Memory
from ptoperator.metrics import Metrics
from ptoperator.reconcile import Reconciler
from ptoperator.resources import Manifest
from ptoperator.settings import Settings
from ptoperator.sweeper import Sweeper
from ptoperator.workqueue import Queue

logger = logging.getLogger(__name__)


class Application:
    """What kopf's handlers call. All methods run in the event loop."""

    def __init__(
        self, kube: Kube, settings: Settings, cloud: CloudProvider | None = None, namespaces: Sequence[str] = ()
    ) -> None:
        self.kube = kube
        self.settings = settings
        self.memory = Memory()
        self.metrics = Metrics(self.memory.phases)
        self.reconciler = Reconciler(kube, self.memory, settings, cloud=cloud)
        self.sweeper = Sweeper(kube, cloud, settings, namespaces) if cloud else None
        self.queue = Queue(self._look, settings.workers, self.metrics.on_look)
        self.endpoints = Endpoints(settings.http_port, self.metrics, self.why_not_alive)
        self._answered = time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.endpoints.start()
        self._tasks.append(asyncio.create_task(self._keep_probing()))
        if self.sweeper:
            self._tasks.append(asyncio.create_task(self._keep_sweeping(self.sweeper)))
        logger.info("posttrain operator works on %s", self.kube.access.server)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self.queue.close()
        await self.endpoints.stop()
        self.kube.close()

    def on_job(self, kind: str | None, job: Manifest) -> None:
        """A PostTrainJob was listed (None), added, modified or deleted."""
        self._heard()
        key = (str(job["metadata"]["namespace"]), str(job["metadata"]["name"]))
        if kind == "DELETED":
            self.memory.forget(key)
            return
        if self.memory.is_own_write(job):
            return
        self.memory.note_job(job)
        self.queue.add(key)

    def on_child(self, kind: str | None, child: Manifest) -> None:
        """A JobSet or a pod of a job changed."""
        self._heard()
        name = (child["metadata"].get("labels") or {}).get(labels.JOB)
        if name:
            self.queue.add((str(child["metadata"]["namespace"]), str(name)))

    def on_pod(self, kind: str | None, pod: Manifest) -> None:
        self.memory.note_pod(pod)
        self.on_child(kind, pod)

    def why_not_alive(self) -> str:
        """Why this process should be restarted; empty while it is well."""
        silence_s = time.monotonic() - self._answered
        if silence_s > self.settings.silence_seconds:
            return f"the API server has not answered for {silence_s:.0f} seconds"
        return ""

    def _look(self, key: Key, is_news: bool) -> float | None:
        again = self.reconciler.reconcile(key, is_news=is_news)
        self._heard()
        return again

    def _heard(self) -> None:
        self._answered = time.monotonic()

    async def _keep_sweeping(self, sweeper: Sweeper) -> None:
        while True:
            await asyncio.sleep(self.settings.sweep_seconds)
            try:
                await asyncio.to_thread(sweeper.sweep)
            except ApiError as error:
                logger.warning("node pools were not looked through: %s", error)

    async def _keep_probing(self) -> None:
        """An idle operator hears nothing, so it asks."""
        pause_s = max(1.0, self.settings.silence_seconds / 5)
        while True:
            await asyncio.sleep(pause_s)
            if time.monotonic() - self._answered < pause_s:
                continue
            try:
                await asyncio.to_thread(self.kube.request, "GET", "/version")
                self._heard()
            except ApiError as error:
                logger.warning("the API server does not answer: %s", error)
