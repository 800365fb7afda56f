"""Delete orphaned node pools periodically: the effects around `capacity.orphaned_pools`.

It also finds jobs that are being deleted while there are pools: kopf sends no more events of a namespace that is being
deleted, and the namespace waits for their finalizer.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime

from ptkube import timestamps
from ptkube.errors import Forbidden
from ptkube.resources import POSTTRAINJOBS
from ptoperator.capacity.cloud import CloudProvider
from ptoperator.capacity.node_pools.orphaned_pools import find_orphans
from ptoperator.job import JobObject, read_job
from ptoperator.kube.audited_client import KubeReader
from ptoperator.observe.cache import Key
from ptoperator.settings import Settings

logger = logging.getLogger(__name__)


class OrphanCollector:
    """Deletes orphaned node pools. namespaces: those that the operator serves; none: all."""

    def __init__(
        self,
        kube: KubeReader,
        cloud: CloudProvider,
        settings: Settings,
        namespaces: Sequence[str] = (),
        now: Callable[[], datetime] = timestamps.utc_now,
        on_sweep: Callable[[int], None] = lambda orphans: None,
        on_leaving: Callable[[Key], None] = lambda key: None,
    ) -> None:
        self._kube = kube
        self._cloud = cloud
        self._settings = settings
        self._namespaces = namespaces
        self._now = now
        self._on_sweep = on_sweep
        self._on_leaving = on_leaving

    def collect(self) -> None:
        """Delete orphaned pools once. Lists pools before jobs: see `capacity.orphaned_pools`. Raises ApiError."""
        cloud = self._cloud.snapshot()
        if cloud.failure is not None:
            return
        jobs, unread = self._jobs() if cloud.pools else ([], frozenset())
        for job in jobs:
            if job.is_deleting:
                self._on_leaving(job.key)
        pools = [pool for pool in cloud.pools if pool.namespace not in unread]
        orphans = find_orphans(pools, jobs, self._namespaces, self._settings, self._now())
        self._on_sweep(sum(bool(action.job_uid) for action, _ in orphans))  # one that waited for a job is no orphan
        for action, why in orphans:
            if cloud.busy:
                return
            logger.info("deleting node pool %s: %s", action.pool, why)
            self._cloud.carry_out(action)

    def _jobs(self) -> tuple[list[JobObject], frozenset[str]]:
        """Return all jobs, and the namespaces whose jobs may not be read.

        A namespace that is being deleted takes the operator's role with it.
        """
        jobs: list[JobObject] = []
        unread: set[str] = set()
        for namespace in self._namespaces or (None,):
            try:
                jobs += map(read_job, self._kube.list(POSTTRAINJOBS, namespace).items)
            except Forbidden as error:
                if namespace is None:
                    raise
                logger.warning("jobs of namespace %s cannot be listed; keeping its node pools: %s", namespace, error)
                unread.add(namespace)
        return jobs, frozenset(unread)
