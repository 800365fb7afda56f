"""A local copy of one kind's objects, kept current by a watch.

What a controller reads instead of asking the API server. The one idea is `record`: the answer of our own write goes
into the copy at once unless the watch has already passed it, so a controller never acts on a state older than its
own last write. Objects handed out are shared: read them, never change them.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ptkube.errors import ApiError, NotFound
from ptkube.resources import Manifest, Resource
from ptkube.watch import LISTED, Key, differences, follow, key_of

if TYPE_CHECKING:
    from ptkube.client import Kube

log = logging.getLogger(__name__)

Listener = Callable[[str, Manifest], None]  # ADDED, MODIFIED or DELETED, and the object

_NOT_SERVED_RETRY_S = 5.0  # the kind's CRD may be installed later


class Informer:
    """List, then watch, for as long as `stop` is not set. Listeners run on the informer's thread: be quick."""

    def __init__(self, kube: Kube, resource: Resource, stop: threading.Event, *, fields: str | None = None) -> None:
        self.resource = resource
        self.synced = threading.Event()
        self._kube = kube
        self._fields = fields
        self._stop = stop
        self._lock = threading.RLock()
        self._items: dict[Key, Manifest] = {}
        self._watched_version = 0
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Also called with ADDED for every object that is already there."""
        with self._lock:
            self._listeners.append(listener)
            for item in self._items.values():
                listener("ADDED", item)

    def get(self, namespace: str, name: str) -> Manifest | None:
        """Return the object in the local copy, or None."""
        with self._lock:
            return self._items.get((namespace, name))

    def items(self, namespace: str | None = None) -> list[Manifest]:
        """Return all objects in the local copy, or those of a namespace."""
        with self._lock:
            return [i for (ns, _), i in self._items.items() if namespace is None or ns == namespace]

    def owned_by(self, uid: str, namespace: str) -> list[Manifest]:
        """Objects whose controlling owner has this uid."""
        return [item for item in self.items(namespace) if controller_uid(item) == uid]

    def record(self, item: Manifest) -> None:
        """Take over the server's answer to our own create or update."""
        with self._lock:
            if version_of(item) <= self._watched_version:
                return  # the watch has told us already, perhaps even of its deletion
            known = self._items.get(key_of(item))
            if known is None or version_of(known) < version_of(item):
                self._items[key_of(item)] = {
                    "apiVersion": self.resource.api_version,
                    "kind": self.resource.kind,
                    **item,
                }

    def start(self) -> threading.Thread:
        """Run in a background thread."""
        thread = threading.Thread(target=self.run, name=f"informer-{self.resource.plural}", daemon=True)
        thread.start()
        return thread

    def run(self) -> None:
        """List and watch until `stop`, whatever fails."""
        while not self._stop.is_set():
            try:
                for kind, item in follow(
                    self._kube,
                    self.resource,
                    fields=self._fields,
                    endures=self._endures,
                    left_s=lambda: 0.0 if self._stop.is_set() else math.inf,
                    wait=self._stop.wait,
                ):
                    self._hear(kind, item)
            except NotFound:  # a kind that is not served has no objects
                self._replace([], "0")
                self._stop.wait(_NOT_SERVED_RETRY_S)
            except ApiError:
                return  # the client was closed under us, as `stop` says

    def _endures(self, error: ApiError, failures: int, lost_s: float) -> bool:
        if failures == 0 and not self._stop.is_set():
            log.warning("watch of %s interrupted: %s", self.resource.plural, error.message.splitlines()[0])
        return not self._stop.is_set()

    def _hear(self, kind: str, item: Any) -> None:
        if kind == LISTED:
            self._replace(item.items, item.resource_version)
        elif kind == "BOOKMARK":
            with self._lock:
                self._watched_version = max(self._watched_version, version_of(item))
        else:
            self._take(kind, item)

    def _take(self, kind: str, item: Manifest) -> None:
        with self._lock:
            self._watched_version = max(self._watched_version, version_of(item))
            known = self._items.get(key_of(item))
            if kind == "DELETED":
                if known is not None and known["metadata"].get("uid") == item["metadata"].get("uid"):
                    del self._items[key_of(item)]
            elif known is None or version_of(known) <= version_of(item):
                self._items[key_of(item)] = item
            self._tell(kind, item)

    def _replace(self, items: list[Manifest], version: str) -> None:
        with self._lock:
            old, self._items = self._items, {key_of(item): item for item in items}
            self._watched_version = int(version or 0)
            for kind, item in differences(old, self._items):
                self._tell(kind, item)
        self.synced.set()

    def _tell(self, kind: str, item: Manifest) -> None:
        for listener in self._listeners:
            listener(kind, item)


def version_of(item: Manifest) -> int:
    """Return the resourceVersion as a number; 0 if there is none."""
    return int(item["metadata"].get("resourceVersion") or 0)


def controller_uid(item: Manifest) -> str | None:
    """Return the uid of the owner that controls this object, or None."""
    for owner in item["metadata"].get("ownerReferences") or []:
        if owner.get("controller"):
            return str(owner["uid"])
    return None
