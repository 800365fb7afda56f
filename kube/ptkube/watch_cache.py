"""A local copy of one kind's objects, kept current by a watch.

What a controller reads instead of asking the API server. The one idea is `record`: the answer of our own write goes
into the copy at once unless the watch has already passed it, so a controller never acts on a state older than its
own last write. Objects handed out are shared: read them, never change them. Their keys and words are kept once for all
objects, which halves what a thousand of them take.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from sys import intern
from typing import Any

from ptkube.resources import Manifest, Resource
from ptkube.watch import Key, differences, key_of

Listener = Callable[[str, Manifest], None]  # ADDED, MODIFIED or DELETED, and the object


class LocalCopy:
    """Objects of one kind by name, and by `index` where that is given.

    trim: returns what is kept of an object. index: returns what objects are looked up by, empty for none.
    """

    def __init__(
        self,
        resource: Resource,
        *,
        trim: Callable[[Manifest], Manifest] = lambda item: item,
        index: Callable[[Manifest], str] = lambda item: "",
    ) -> None:
        self.resource = resource
        self.synced = threading.Event()
        self._trim = trim
        self._index = index
        self._lock = threading.RLock()
        self._items: dict[Key, Manifest] = {}
        self._indexed: dict[Key, dict[Key, Manifest]] = defaultdict(dict)
        self._unconfirmed: dict[Key, Manifest] = {}
        self._watched_version = 0
        self._listeners: list[Listener] = []

    def trim(self, item: Manifest) -> Manifest:
        """Return the object as it is kept."""
        return _with_shared_words(self._trim(item))  # type: ignore[no-any-return]

    def listen(self, listener: Listener) -> None:
        """Call the listener for every change from now on, and now with ADDED for every object that is there."""
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

    def indexed(self, namespace: str, value: str) -> list[Manifest]:
        """Return the objects of a namespace for which `index` returned this value."""
        with self._lock:
            return list(self._indexed.get((namespace, value), {}).values())

    def owned_by(self, uid: str, namespace: str) -> list[Manifest]:
        """Return the objects of a namespace whose controlling owner has this uid."""
        return [item for item in self.items(namespace) if controller_uid(item) == uid]

    def record(self, item: Manifest) -> Manifest:
        """Take over the server's answer to our own read, create or update; return the newest of the object."""
        with self._lock:
            known = self._items.get(key_of(item))
            if known is not None and version_of(known) >= version_of(item):
                return known
            named = self.trim({"apiVersion": self.resource.api_version, "kind": self.resource.kind, **item})
            if version_of(item) > self._watched_version:  # else the watch has passed it, perhaps even its deletion
                self._unconfirmed[key_of(item)] = self._put(named)
            return named

    def take(self, kind: str, item: Manifest) -> Manifest:
        """Take over an event of a watch, tell the listeners, and return the newest of the object."""
        with self._lock:
            key = key_of(item)
            known, written = self._items.get(key), self._unconfirmed.get(key)
            if written is not None and version_of(written) <= version_of(item):
                del self._unconfirmed[key]
            if kind == "DELETED":
                item = self.trim(item)
                self.forget(item)
            elif known is None or version_of(known) < version_of(item):
                item = self._put(self.trim(item))
            else:
                item = known
            self._tell(kind, item)
            return item

    def pass_version(self, item: Manifest) -> None:
        """Note that the watch is at the version of this object or bookmark: what is older will not come any more."""
        with self._lock:
            self._watched_version = max(self._watched_version, version_of(item))

    def replace(self, items: list[Manifest], version: str) -> None:
        """Take over a listing, but for what was written after it; tell the listeners what it changed."""
        with self._lock:
            old, listed = self._items, int(version or 0)
            self._items, self._watched_version = {}, listed
            self._indexed.clear()
            self._unconfirmed = {key: item for key, item in self._unconfirmed.items() if version_of(item) > listed}
            for item in [*map(self.trim, items), *self._unconfirmed.values()]:
                self._put(item)
            for kind, item in differences(old, self._items):
                self._tell(kind, item)
        self.synced.set()

    def forget(self, item: Manifest) -> None:
        """Drop an object that the API server does not have any more, whether or not a watch will tell of it."""
        with self._lock:
            known = self._items.get(key_of(item))
            if known is not None and known["metadata"].get("uid") == item["metadata"].get("uid"):
                self._drop(key_of(item))
                self._unconfirmed.pop(key_of(item), None)

    def _put(self, item: Manifest) -> Manifest:
        key = key_of(item)
        self._forget_index(key)
        self._items[key] = item
        if value := self._index(item):
            self._indexed[key[0], value][key] = item
        return item

    def _drop(self, key: Key) -> None:
        self._forget_index(key)
        del self._items[key]

    def _forget_index(self, key: Key) -> None:
        old = self._items.get(key)
        if old is not None and (value := self._index(old)):
            group = self._indexed[key[0], value]
            group.pop(key, None)
            if not group:
                del self._indexed[key[0], value]

    def _tell(self, kind: str, item: Manifest) -> None:
        for listener in self._listeners:
            listener(kind, item)


def _with_shared_words(value: Any) -> Any:
    """Return a copy of JSON in which equal strings are one object: a parser makes new ones for each document."""
    if isinstance(value, dict):
        return {intern(key): _with_shared_words(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_shared_words(each) for each in value]
    return intern(value) if type(value) is str else value


def version_of(item: Manifest) -> int:
    """Return the resourceVersion as a number; 0 if there is none."""
    return int(item["metadata"].get("resourceVersion") or 0)


def controller_uid(item: Manifest) -> str | None:
    """Return the uid of the owner that controls this object, or None."""
    for owner in item["metadata"].get("ownerReferences") or []:
        if owner.get("controller"):
            return str(owner["uid"])
    return None
