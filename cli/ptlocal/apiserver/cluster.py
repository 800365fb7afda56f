"""The server's state put together: store, registry, watches and writer, and the housekeeping between them.

Definitions become served kinds the moment they are written; definitions and namespaces that are being deleted are
emptied in the background (sweeper.py). No HTTP here.
"""

from __future__ import annotations

import json
from typing import Any

from ptlocal.apiserver import crds
from ptlocal.apiserver.options import WriteOptions
from ptlocal.apiserver.registry import Registry
from ptlocal.apiserver.rules.namespaces import NAME_LABEL
from ptlocal.apiserver.store import Change, Store
from ptlocal.apiserver.sweeper import Sweeper
from ptlocal.apiserver.watching import Hub
from ptlocal.apiserver.writing import Writer
from ptlocal.layout import Layout

_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_SELF = WriteOptions(manager="posttrain-local")


class Cluster:
    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        layout.data.mkdir(parents=True, exist_ok=True)
        self.store = Store(layout.database)
        self.registry = Registry()
        self.hub = Hub(self.store)
        self.writer = Writer(self.store)
        for row in self.store.rows(crds.STORAGE_KEY):
            self._serve(row.name, row.body)
        self.store.subscribe(self._on_change)
        self._sweeper = Sweeper(self.store, self.registry, self.writer)
        self._seed()
        self._sweeper.sweep()

    def sweep_after(self, obj: dict[str, Any]) -> None:
        """Go on emptying what is being deleted, if this object is part of that."""
        if obj["metadata"].get("deletionTimestamp") or self._sweeper.has_work:
            self._sweeper.sweep()

    def _seed(self) -> None:
        namespaces = self.registry.find("", "v1", "namespaces")
        assert namespaces is not None
        for name in _NAMESPACES:
            if self.store.get(namespaces.storage_key, "", name) is None:
                self.writer.create(namespaces, "", {"apiVersion": "v1", "kind": "Namespace",
                                                    "metadata": {"name": name}}, _SELF)

    def _on_change(self, change: Change) -> None:
        if change.resource == crds.STORAGE_KEY:
            self._serve(change.name, b"" if change.type == "DELETED" else change.body)
        elif change.resource == "/namespaces" and change.type == "ADDED":
            self._add_service_account(change.name)

    def _serve(self, crd_name: str, body: bytes) -> None:
        kinds = crds.kinds_of(json.loads(body)) if body else []
        before = {kind.storage_key: kind for kind in self.registry.kinds() if kind.is_custom
                  and f"{kind.plural}.{kind.group}" == crd_name}
        self.registry.set_custom(crd_name, kinds)
        for key, old in before.items():
            now = self.registry.of_storage(key)
            if now is None:
                self.hub.end(key)
                self.store.forget_resource(key)
            elif dict(now.fields) != dict(old.fields):
                self.store.reindex(now)

    def _add_service_account(self, namespace: str) -> None:
        """Every namespace has the account `default`, which a controller makes on a real cluster."""
        accounts = self.registry.find("", "v1", "serviceaccounts")
        assert accounts is not None
        if self.store.get(accounts.storage_key, namespace, "default") is None:
            self.writer.create(accounts, namespace, {"apiVersion": "v1", "kind": "ServiceAccount",
                                                     "metadata": {"name": "default"}}, _SELF)
