"""A local copy of one kind's objects, kept current by a watch.

What a controller reads instead of asking the API server. The one idea is `record`: the answer of our own write goes
into the copy at once unless the watch has already passed it, so a controller never acts on a state older than its
own last write. Objects handed out are shared: read them, never change them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ptkube.client import ApiError, Gone, Kube, NotFound
from ptkube.resources import Manifest, Resource

log = logging.getLogger(__name__)

Key = tuple[str, str]  # namespace ("" for cluster-scoped kinds) and name
Listener = Callable[[str, Manifest], None]  # ADDED, MODIFIED or DELETED, and the object

_BACKOFF_S = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0)
_NOT_SERVED_RETRY_S = 5.0  # the kind's CRD may be installed later


def key_of(item: Manifest) -> Key:
    """Return namespace and name of an object."""
    meta = item["metadata"]
    return str(meta.get("namespace") or ""), str(meta["name"])


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
        self._seen_version = 0
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
            if version_of(item) <= self._seen_version:
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
        """List and watch until `stop`, with a backoff after failures."""
        failures = 0
        while not self._stop.is_set():
            try:
                self._list_and_watch()
                failures = 0
            except Gone:
                failures = 0
            except NotFound:
                self._forget_all()
                self._stop.wait(_NOT_SERVED_RETRY_S)
            except ApiError as error:
                if self._stop.is_set():
                    return
                if failures == 0:
                    log.warning("watch of %s interrupted: %s", self.resource.plural, error.message.splitlines()[0])
                self._stop.wait(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])
                failures += 1

    def _list_and_watch(self) -> None:
        listed = self._kube.list(self.resource, fields=self._fields)
        self._replace(listed.items, listed.resource_version)
        self.synced.set()
        version = listed.resource_version
        while not self._stop.is_set():
            events = self._kube.watch(self.resource, fields=self._fields, resource_version=version, bookmarks=True)
            for kind, item in events:
                version = str(item["metadata"]["resourceVersion"])
                if kind == "BOOKMARK":
                    with self._lock:
                        self._seen_version = max(self._seen_version, int(version))
                else:
                    self._take(kind, item)

    def _take(self, kind: str, item: Manifest) -> None:
        with self._lock:
            self._seen_version = max(self._seen_version, version_of(item))
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
            self._seen_version = int(version or 0)
            for key, item in old.items():
                new = self._items.get(key)
                if new is None or new["metadata"].get("uid") != item["metadata"].get("uid"):
                    self._tell("DELETED", item)
            for key, item in self._items.items():
                before = old.get(key)
                if before is None or before["metadata"].get("uid") != item["metadata"].get("uid"):
                    self._tell("ADDED", item)
                elif version_of(before) != version_of(item):
                    self._tell("MODIFIED", item)

    def _forget_all(self) -> None:
        with self._lock:
            self._replace([], "0")
        self.synced.set()  # a kind that is not served has no objects

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
