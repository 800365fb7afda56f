"""Deletes node pools that nobody holds, every now and then: the effects around `capacity.sweep`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Protocol

from ptoperator import clock
from ptoperator.capacity.cloud import CloudProvider
from ptoperator.capacity.sweep import sweep
from ptoperator.resources import POSTTRAINJOBS, Manifest, Resource
from ptoperator.settings import Settings

logger = logging.getLogger(__name__)


class Lister(Protocol):
    """The part of `kube.Kube` that sweeping needs."""

    def list(self, r: Resource, namespace: str | None = None, /) -> Any: ...


class Sweeper:
    """namespaces: those that the operator serves; none: all."""

    def __init__(
        self,
        kube: Lister,
        cloud: CloudProvider,
        settings: Settings,
        namespaces: Sequence[str] = (),
        now: Callable[[], datetime] = clock.utc_now,
        on_sweep: Callable[[int], None] = lambda orphans: None,
    ) -> None:
        self._kube = kube
        self._cloud = cloud
        self._settings = settings
        self._namespaces = namespaces
        self._now = now
        self._on_sweep = on_sweep

    def sweep(self) -> None:
        """Once. Pools are listed before jobs: see `capacity.sweep`. Raises ApiError."""
        seen = self._cloud.look()
        if seen.trouble is not None:
            return
        jobs = self._jobs() if seen.pools else []
        found = sweep(seen.pools, jobs, self._namespaces, self._settings, self._now())
        self._on_sweep(sum(bool(action.job_uid) for action, _ in found))  # one that waited for a job is no orphan
        for action, why in found:
            if seen.busy:
                return
            logger.info("node pool %s is deleted: %s", action.pool, why)
            self._cloud.carry_out(action)

    def _jobs(self) -> list[Manifest]:
        namespaces: Sequence[str | None] = self._namespaces or [None]
        return [job for namespace in namespaces for job in self._kube.list(POSTTRAINJOBS, namespace).items]
