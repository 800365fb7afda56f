"""Deletes node pools that nobody holds, every now and then: the effects around `capacity.sweep`.

It also names the jobs that are being deleted while there are pools: kopf hears nothing more of a namespace that goes,
and the namespace waits for their finalizer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Protocol

from ptkube import timestamps
from ptkube.errors import Forbidden
from ptkube.resources import POSTTRAINJOBS, Manifest, Resource
from ptoperator.capacity.cloud import CloudProvider
from ptoperator.capacity.orphaned_pools import find_orphans
from ptoperator.observe.cache import Key
from ptoperator.settings import Settings

logger = logging.getLogger(__name__)


class Lister(Protocol):
    """The part of `kube.Kube` that sweeping needs."""

    def list(self, r: Resource, namespace: str | None = None, /) -> Any: ...


class OrphanCollector:
    """namespaces: those that the operator serves; none: all."""

    def __init__(
        self,
        kube: Lister,
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
        """Once. Pools are listed before jobs: see `capacity.sweep`. Raises ApiError."""
        cloud = self._cloud.look()
        if cloud.trouble is not None:
            return
        jobs, unread = self._jobs() if cloud.pools else ([], frozenset())
        for job in jobs:
            if job["metadata"].get("deletionTimestamp"):
                self._on_leaving((str(job["metadata"]["namespace"]), str(job["metadata"]["name"])))
        pools = [pool for pool in cloud.pools if pool.namespace not in unread]
        found = find_orphans(pools, jobs, self._namespaces, self._settings, self._now())
        self._on_sweep(sum(bool(action.job_uid) for action, _ in found))  # one that waited for a job is no orphan
        for action, why in found:
            if cloud.busy:
                return
            logger.info("node pool %s is deleted: %s", action.pool, why)
            self._cloud.carry_out(action)

    def _jobs(self) -> tuple[list[Manifest], frozenset[str]]:
        """All jobs, and the namespaces whose jobs may not be read: one that goes takes the operator's role with it."""
        jobs: list[Manifest] = []
        unread: set[str] = set()
        for namespace in self._namespaces or (None,):
            try:
                jobs += self._kube.list(POSTTRAINJOBS, namespace).items
            except Forbidden as error:
                if namespace is None:
                    raise
                logger.warning("jobs of namespace %s cannot be listed, its node pools stay: %s", namespace, error)
                unread.add(namespace)
        return jobs, frozenset(unread)
