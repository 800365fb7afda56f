"""Garbage collection by owner references, for API servers without a kube-controller-manager.

Watches every kind that the server offers (discovered at the start, and when a CRD is created or deleted). An owner
counts as deleted only after the server itself says so, never because a cache has not seen it yet.
"""

import logging
import threading
from collections import defaultdict
from functools import partial

from ptkube.client import ApiError, Kube, NotFound
from ptkube.informer import Informer
from ptkube.objects import is_deleting
from ptkube.resources import CRDS, Manifest, Resource
from ptkube.watch import Key, key_of
from ptkube.workqueue import WorkQueue
from ptlocal.controllers import owner_references
from ptlocal.controllers.owner_references import FOREGROUND, OwnerState, Verdict

log = logging.getLogger(__name__)

Node = tuple[Resource, Key]

_IGNORED_GROUPS = ("events.k8s.io", "metrics.k8s.io", "authentication.k8s.io", "authorization.k8s.io")
_AGAIN_S = 1.0
_SYNC_S = 10.0
_DISCOVER: Node = (CRDS, ("", ""))  # the queue key for discovery


class GarbageCollector:
    """Deletes objects whose owners are gone."""

    def __init__(self, kube: Kube, shared: list[Informer], stop: threading.Event) -> None:
        self.queue: WorkQueue[Node] = WorkQueue("garbage-collector", lambda key, _: self._reconcile(key))
        self._kube = kube
        self._stop = stop
        self._shared = {informer.resource: informer for informer in shared}
        self._informers: dict[Resource, Informer] = {}
        self._lock = threading.Lock()
        self._dependents: dict[str, set[Node]] = defaultdict(set)
        self._owners: dict[Node, tuple[str, ...]] = {}
        self._place_of: dict[str, Node] = {}

    def start(self) -> None:
        """Start the watches and the worker thread."""
        self.queue.add(_DISCOVER)
        self.queue.start()

    # --- observe

    def _reconcile(self, node: Node) -> float | None:
        if node == _DISCOVER:
            return None if self._discover() else _AGAIN_S
        resource, (namespace, name) = node
        informer = self._informers.get(resource)
        item = informer.get(namespace, name) if informer else None
        if item is not None and _may_need_work(item):
            owners = {uid: self._state(item, owner) for uid, owner in _references(item)}
            self._carry_out(resource, item, owner_references.judge(item, owners, self._dependents_of(item)))
            if any(state != "gone" and uid not in self._place_of for uid, state in owners.items()):
                return (
                    _AGAIN_S  # no watch has shown that owner, so none may show its end: those of a new CRD begin late
                )
        return None

    def _discover(self) -> bool:
        """Watch newly served kinds; return False if a kind is announced but not served yet."""
        resources, complete = served_resources(self._kube)
        added = [resource for resource in resources if resource not in self._informers]
        for resource in added:
            informer = self._shared.get(resource)
            if informer is None:
                informer = Informer(self._kube, resource, self._stop)
                informer.start()
            self._informers[resource] = informer
            informer.listen(partial(self._changed, resource))
        for resource in added:
            # nothing is judged before its dependents are known: a foreground deletion would end too early
            self._informers[resource].synced.wait(_SYNC_S)
        return complete

    def _changed(self, resource: Resource, kind: str, item: Manifest) -> None:
        node = (resource, key_of(item))
        uid = str(item["metadata"]["uid"])
        with self._lock:
            for owner in self._owners.pop(node, ()):
                self._dependents[owner].discard(node)
            if kind == "DELETED":
                self._place_of.pop(uid, None)
            else:
                self._place_of[uid] = node
                self._owners[node] = tuple(owner_references.owner_uids(item))
                for owner in self._owners[node]:
                    self._dependents[owner].add(node)
            touched = set(self._dependents.get(uid, ())) if kind == "DELETED" or is_deleting(item) else set()
            waiting = [self._place_of[o] for o in owner_references.owner_uids(item) if o in self._place_of]
        if kind != "DELETED":
            self.queue.add(node)
        for other in [*touched, *(waiting if kind == "DELETED" or is_deleting(item) else [])]:
            self.queue.add(other)
        if resource == CRDS:
            self.queue.add(_DISCOVER, 0.2)  # the new kind is served a moment after its CRD is written

    def _dependents_of(self, item: Manifest) -> list[Manifest]:
        with self._lock:
            nodes = list(self._dependents.get(str(item["metadata"]["uid"]), ()))
        dependents = [self._informers[resource].get(*key) for resource, key in nodes if resource in self._informers]
        return [dependent for dependent in dependents if dependent is not None]

    def _state(self, item: Manifest, owner: Manifest) -> OwnerState:
        place = self._place_of.get(str(owner["uid"]))
        if place is not None:
            cached = self._informers[place[0]].get(*place[1])
            if cached is not None and cached["metadata"]["uid"] == owner["uid"]:
                return "leaving" if _in_foreground(cached) else "solid"
        resource = next(
            (r for r in self._informers if (r.api_version, r.kind) == (owner["apiVersion"], owner["kind"])), None
        )
        if resource is None:
            log.debug("owner kind %s %s is not served; its dependents stay", owner["apiVersion"], owner["kind"])
            return "solid"
        try:
            live = self._kube.get(resource, owner["name"], item["metadata"].get("namespace"))
        except NotFound:
            return "gone"
        if live["metadata"]["uid"] != owner["uid"]:
            return "gone"
        return "leaving" if _in_foreground(live) else "solid"

    # --- act

    def _carry_out(self, resource: Resource, item: Manifest, verdict: Verdict) -> None:
        meta = item["metadata"]
        name, namespace = meta["name"], meta.get("namespace")
        try:
            if verdict.delete:
                self._kube.delete(resource, name, namespace, propagation=verdict.delete, uid=meta["uid"])
            if verdict.drop_owners:
                self._patch(
                    resource, item, {"ownerReferences": owner_references.without_owners(item, verdict.drop_owners)}
                )
            if verdict.delete_dependents:
                self._delete_dependents(item)
            if verdict.orphan_dependents:
                self._orphan_dependents(item)
            if verdict.drop_finalizer:
                rest = [f for f in meta["finalizers"] if f != verdict.drop_finalizer]
                self._patch(resource, item, {"finalizers": rest or None})
        except NotFound:
            return

    def _delete_dependents(self, owner: Manifest) -> None:
        for resource, item in self._located_dependents(owner):
            if is_deleting(item):
                continue
            others = [uid for uid in owner_references.owner_uids(item) if uid != owner["metadata"]["uid"]]
            if not others:
                below = self._dependents_of(item)
                self._carry_out(resource, item, Verdict(delete="Foreground" if below else "Background"))
            else:
                self.queue.add((resource, key_of(item)))

    def _orphan_dependents(self, owner: Manifest) -> None:
        for resource, item in self._located_dependents(owner):
            self._carry_out(resource, item, Verdict(drop_owners=frozenset({str(owner["metadata"]["uid"])})))

    def _located_dependents(self, owner: Manifest) -> list[tuple[Resource, Manifest]]:
        with self._lock:
            nodes = list(self._dependents.get(str(owner["metadata"]["uid"]), ()))
        pairs = [(resource, self._informers[resource].get(*key)) for resource, key in nodes]
        return [(resource, item) for resource, item in pairs if item is not None]

    def _patch(self, resource: Resource, item: Manifest, change: Manifest) -> None:
        meta = item["metadata"]
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"], **change}}
        self._informers[resource].record(self._kube.patch(resource, meta["name"], meta.get("namespace"), patch))


def served_resources(kube: Kube) -> tuple[list[Resource], bool]:
    """Return every kind that can be listed, watched and deleted, and True if every group answered."""
    complete = True
    resources: dict[tuple[str, str], Resource] = {}
    versions = [("", v) for v in kube.request("GET", "/api").get("versions") or ["v1"]]
    for group in kube.request("GET", "/apis").get("groups") or []:
        if group["name"] not in _IGNORED_GROUPS:
            versions.append((group["name"], group["preferredVersion"]["version"]))
    for group, version in versions:
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        try:
            listed = kube.request("GET", path).get("resources") or []
        except ApiError as error:
            log.debug("kinds of %s/%s are not known yet: %s", group, version, error)
            complete = False
            continue
        for entry in listed:
            if {"list", "watch", "delete"} <= set(entry.get("verbs") or []) and "/" not in entry["name"]:
                resources.setdefault(
                    (group, entry["name"]),
                    Resource(group, version, entry["name"], entry["kind"], bool(entry["namespaced"])),
                )
    resources.pop(("", "events"), None)  # many, short-lived, without owners
    return list(resources.values()), complete


def _references(item: Manifest) -> list[tuple[str, Manifest]]:
    return [(str(owner["uid"]), owner) for owner in item["metadata"].get("ownerReferences") or []]


def _may_need_work(item: Manifest) -> bool:
    return bool(item["metadata"].get("ownerReferences")) or is_deleting(item)


def _in_foreground(item: Manifest) -> bool:
    return is_deleting(item) and FOREGROUND in (item["metadata"].get("finalizers") or [])
