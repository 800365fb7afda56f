"""The one list-watch: list once, then watch, again and again.

The loop that everything which follows a kind needs and easily gets wrong: a watch ends after minutes (go on where it
was), its version may have become too old (list again), and a cluster that restarts is away for a moment (list again,
after a pause). `changes` is for a program that waits; `informer` keeps a copy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ptkube.backoff import pause_s
from ptkube.errors import CLIENT_CLOSED, ApiError, Gone, NotFound, Unreachable
from ptkube.resources import Manifest, Resource

if TYPE_CHECKING:
    from ptkube.client import Kube, ListResult

Key = tuple[str, str]  # namespace ("" for cluster-scoped kinds) and name

LISTED = "LISTED"
"""What `follow` yields with each ListResult, besides the events of a watch, BOOKMARK among them."""
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 5.0
_PATIENCE_S = 30.0
"""How long a cluster that was there may be away before a program that waits gives up."""


def key_of(item: Manifest) -> Key:
    """Return namespace and name of an object."""
    meta = item["metadata"]
    return str(meta.get("namespace") or ""), str(meta["name"])


@dataclass(frozen=True)
class Selection:
    """The objects that are followed. namespace: None for all. labels, fields: selectors, None for all."""

    resource: Resource
    namespace: str | None = None
    labels: str | None = None
    fields: str | None = None

    def list(self, kube: Kube) -> ListResult:
        """List them."""
        return kube.list(self.resource, self.namespace, labels=self.labels, fields=self.fields)

    def watch(self, kube: Kube, version: str, left_s: float) -> Iterator[tuple[str, Manifest]]:
        """Yield the events after a version, BOOKMARK among them, for about so long."""
        return kube.watch(
            self.resource,
            self.namespace,
            labels=self.labels,
            fields=self.fields,
            resource_version=version,
            timeout_s=None if math.isinf(left_s) else max(1, int(left_s) + 1),
            bookmarks=True,
        )


def follow(
    kube: Kube,
    selection: Selection,
    *,
    endures: Callable[[ApiError, int, float], bool],
    left_s: Callable[[], float],
    wait: Callable[[float], object] = time.sleep,
) -> Iterator[tuple[str, Any]]:
    """Yield a listing, then events, while there is time left.

    endures(error, failures since the last event, seconds since the last good listing was lost) says whether to go on.
    Raises NotFound where the kind is not served, and what is not endured.
    """
    version: str | None = None
    lost_at: float | None = None
    failures = 0
    while (left := left_s()) > 0:
        try:
            if version is None:
                listed = selection.list(kube)
                version, lost_at = listed.resource_version, None
                yield LISTED, listed
                left = left_s()
            for kind, item in selection.watch(kube, version, left):
                failures, version = 0, str(item["metadata"]["resourceVersion"])
                yield kind, item
        except Gone:
            version = None
        except NotFound:
            raise
        except ApiError as error:
            now = time.monotonic()
            lost_at = now if lost_at is None else lost_at
            if not endures(error, failures, now - lost_at):
                raise
            failures, version = failures + 1, None
            wait(pause_s(failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S))


def changes(
    kube: Kube,
    resource: Resource,
    namespace: str | None,
    *,
    labels: str | None = None,
    fields: str | None = None,
    until: float | None = None,
) -> Iterator[tuple[str, Manifest]]:
    """Yield (ADDED | MODIFIED | DELETED, object), first for all that exist; without end, or until a monotonic time.

    ("SYNCED", {}) follows each listing. Objects that were seen, and are gone when a listing is repeated, come as
    DELETED.
    """
    known: dict[Key, Manifest] | None = None

    def endures(error: ApiError, failures: int, lost_s: float) -> bool:
        is_away = isinstance(error, Unreachable) and error.reason != CLIENT_CLOSED
        return known is not None and is_away and lost_s <= _PATIENCE_S

    def left_s() -> float:
        return math.inf if until is None else until - time.monotonic()

    selection = Selection(resource, namespace, labels, fields)
    for kind, item in follow(kube, selection, endures=endures, left_s=left_s):
        if kind == LISTED:
            before, known = known or {}, {key_of(each): each for each in item.items}
            yield from differences(before, known)
            yield "SYNCED", {}
        elif known is not None and kind != "BOOKMARK":
            known.pop(key_of(item), None)
            if kind != "DELETED":
                known[key_of(item)] = item
            yield kind, item


def differences(before: dict[Key, Manifest], after: dict[Key, Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Yield the events that were missed between two listings; an object made anew comes as DELETED and ADDED."""
    for key, item in before.items():
        if key not in after or _uid(after[key]) != _uid(item):
            yield "DELETED", item
    for key, item in after.items():
        old = before.get(key)
        if old is None or _uid(old) != _uid(item):
            yield "ADDED", item
        elif old["metadata"].get("resourceVersion") != item["metadata"].get("resourceVersion"):
            yield "MODIFIED", item


def _uid(item: Manifest) -> Any:
    return item["metadata"].get("uid")
