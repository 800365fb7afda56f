"""Seeing changes of jobs: list once, then watch, again and again, until the caller has seen enough.

The loop that every watcher needs and easily gets wrong: a watch ends after minutes (continue where it was), its
version may have become too old (list again), and a cluster that restarts is away for a moment (try again).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ptkube.errors import Gone, Unreachable
from ptkube.resources import Manifest, Resource

if TYPE_CHECKING:
    from ptkube.client import Kube


_PATIENCE_S = 30.0
"""How long a cluster that was there may be away before the watcher gives up."""


def changes(
    kube: Kube,
    resource: Resource,
    namespace: str | None,
    *,
    labels: str | None = None,
    fields: str | None = None,
    until: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[str, Manifest]]:
    """Yield (ADDED | MODIFIED | DELETED, object), first for all that exist; without end, or until a time.

    ("SYNCED", {}) follows each listing. Objects that were seen, and are gone when a listing is repeated, come as
    DELETED.
    """
    known: dict[str, Manifest] = {}
    version: str | None = None
    lost_at: float | None = None
    while until is None or clock() < until:
        try:
            if version is None:
                result = kube.list(resource, namespace, labels=labels, fields=fields)
                lost_at, version = None, result.resource_version
                yield from _listing(result.items, known)
                yield "SYNCED", {}
            timeout_s = None if until is None else max(1, int(until - clock()) + 1)
            for kind, item in kube.watch(
                resource, namespace, labels=labels, fields=fields, resource_version=version, timeout_s=timeout_s
            ):
                lost_at, version = None, str(item["metadata"]["resourceVersion"])
                _remember(known, kind, item)
                yield kind, item
        except Gone:
            version = None
        except Unreachable:
            if not known and version is None:
                raise
            lost_at = lost_at or clock()
            if clock() - lost_at > _PATIENCE_S:
                raise
            version = None
            time.sleep(0.5)


def _listing(items: list[Manifest], known: dict[str, Manifest]) -> Iterator[tuple[str, Manifest]]:
    listed = {str(item["metadata"]["uid"]): item for item in items}
    for uid in [uid for uid in known if uid not in listed]:
        yield "DELETED", known.pop(uid)
    for uid, item in listed.items():
        before = known.get(uid)
        known[uid] = item
        if before is None or before["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"]:
            yield ("ADDED" if before is None else "MODIFIED"), item


def _remember(known: dict[str, Manifest], kind: str, item: Manifest) -> None:
    uid = str(item["metadata"]["uid"])
    if kind == "DELETED":
        known.pop(uid, None)
    else:
        known[uid] = item
