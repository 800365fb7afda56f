"""The server's state: store, registry, watches and writer, and the housekeeping between them.

Definitions become served kinds as soon as they are written; definitions and namespaces that are being deleted are
emptied in the background (namespace_finalizer.py). No HTTP here.
"""

import json
from typing import Any

from ptlocal.apiserver import jobset_crd
from ptlocal.apiserver.kinds import custom_resources
from ptlocal.apiserver.kinds.registry import Registry
from ptlocal.apiserver.storage.store import Change, Store
from ptlocal.apiserver.storage.watchers import Hub
from ptlocal.apiserver.write_options import WriteOptions
from ptlocal.apiserver.writes.namespace_finalizer import Sweeper
from ptlocal.apiserver.writes.object_writer import Writer
from ptlocal.paths import Layout

Manifest = dict[str, Any]
_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_SELF = WriteOptions(manager="posttrain-local")
_OWNER = [
    {"manager": _SELF.manager, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}}
]


class Cluster:
    """The state of one API server."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        layout.data.mkdir(parents=True, exist_ok=True)
        self.store = Store(layout.database)
        self.registry = Registry()
        self.hub = Hub(self.store)
        self.writer = Writer(self.store)
        for row in self.store.rows(custom_resources.STORAGE_KEY):
            self._serve(row.name, row.body)
        self.store.subscribe(self._on_change)
        self._sweeper = Sweeper(self.store, self.registry, self.writer)
        self._seed()
        self._sweeper.sweep()

    def sweep_after(self, obj: Manifest) -> None:
        """Continue to empty what is being deleted, if this object is part of it."""
        if obj["metadata"].get("deletionTimestamp") or self._sweeper.has_work:
            self._sweeper.sweep()

    def _seed(self) -> None:
        for name in _NAMESPACES:
            self._add("", "namespaces", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        wanted = jobset_crd.definition()
        there = self.store.get(custom_resources.STORAGE_KEY, "", wanted["metadata"]["name"])
        if there is None:
            self._add("apiextensions.k8s.io", "customresourcedefinitions", "", wanted)
        elif there["metadata"].get("managedFields") == _OWNER:
            self._renew_definition(wanted)

    def _renew_definition(self, wanted: Manifest) -> None:
        """Update our own definition of an older release; keep a public one that a user installed."""

        def renew(crd: Manifest) -> None:
            crd["spec"] = {**wanted["spec"], "conversion": {"strategy": "None"}}

        kind = self.registry.find("apiextensions.k8s.io", "v1", "customresourcedefinitions")
        assert kind is not None
        self.writer.change(kind, "", wanted["metadata"]["name"], renew)

    def _on_change(self, change: Change) -> None:
        if change.resource == custom_resources.STORAGE_KEY:
            self._serve(change.name, b"" if change.type == "DELETED" else change.body)
        elif change.resource == "/namespaces" and change.type == "ADDED":
            # every namespace has this account; on a real cluster a controller creates it
            self._add(
                "",
                "serviceaccounts",
                change.name,
                {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}},
            )

    def _serve(self, crd_name: str, body: bytes) -> None:
        kinds = custom_resources.kinds_of(json.loads(body)) if body else []
        before = {
            kind.storage_key: kind
            for kind in self.registry.kinds()
            if kind.is_custom and f"{kind.plural}.{kind.group}" == crd_name
        }
        self.registry.set_custom(crd_name, kinds)
        for key, old in before.items():
            now = self.registry.of_storage(key)
            if now is None:
                self.hub.end(key)
                self.store.forget_resource(key)
            elif dict(now.fields) != dict(old.fields):
                self.store.reindex(now)

    def _add(self, group: str, plural: str, namespace: str, obj: Manifest) -> None:
        kind = self.registry.find(group, "v1", plural)
        assert kind is not None
        if self.store.get(kind.storage_key, namespace, obj["metadata"]["name"]) is None:
            # the server's own objects have no field owners, so that applying them causes no conflict
            self.writer.create(kind, namespace, obj, _SELF, managed=_OWNER)
