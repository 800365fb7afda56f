"""Empty what is being deleted: namespaces, and custom resources of a deleted definition.

Both keep a finalizer until they are empty; objects with finalizers of their own, and pods with a grace period, take
their time. Runs after every deletion and at start, so it needs no state of its own.
"""

import json
from typing import Any

from ptlocal.apiserver.errors import StatusError
from ptlocal.apiserver.kinds import custom_resources
from ptlocal.apiserver.kinds.builtin_kinds import Kind
from ptlocal.apiserver.kinds.registry import Registry
from ptlocal.apiserver.storage.store import Store
from ptlocal.apiserver.write_options import DeleteOptions
from ptlocal.apiserver.writes.object_writer import Writer

Manifest = dict[str, Any]
_BACKGROUND = DeleteOptions(propagation="Background")


class Sweeper:
    """Empties namespaces and definitions. `has_work` while a pass left something that a later deletion may release."""

    def __init__(self, store: Store, registry: Registry, writer: Writer) -> None:
        self._store = store
        self._registry = registry
        self._writer = writer
        self.has_work = False

    def sweep(self) -> None:
        """Run one pass over everything that is being deleted."""
        self.has_work = False
        for row in list(self._store.rows("/namespaces")):
            if b'"deletionTimestamp"' in row.body:
                self._sweep_namespace(row.name)
        for row in list(self._store.rows(custom_resources.STORAGE_KEY)):
            crd = json.loads(row.body)
            if crd["metadata"].get("deletionTimestamp"):
                self._sweep_definition(crd)

    def _sweep_namespace(self, namespace: str) -> None:
        for resource in self._store.resources_in(namespace):
            kind = self._registry.of_storage(resource)
            if kind is not None:
                self._delete_all(kind, namespace)
        if not self._store.resources_in(namespace):
            self._release("", "namespaces", namespace)
        else:
            self.has_work = True

    def _sweep_definition(self, crd: Manifest) -> None:
        spec = crd["spec"]
        kind = self._registry.of_storage(f"{spec['group']}/{spec['names']['plural']}")
        if kind is not None:
            self._delete_all(kind, None)
            if self._store.count(kind.storage_key):
                self.has_work = True
                return
        self._release("apiextensions.k8s.io", "customresourcedefinitions", crd["metadata"]["name"])

    def _delete_all(self, kind: Kind, namespace: str | None) -> None:
        for row in list(self._store.rows(kind.storage_key, namespace)):
            if b'"deletionTimestamp"' in row.body and json.loads(row.body)["metadata"].get("deletionTimestamp"):
                continue
            try:
                self._writer.delete(kind, row.namespace, row.name, _BACKGROUND)
            except StatusError as error:
                if error.reason != "NotFound":
                    raise

    def _release(self, group: str, plural: str, name: str) -> None:
        kind = self._registry.find(group, "v1", plural)
        assert kind is not None
        self._writer.change(kind, "", name, _let_namespace_go if plural == "namespaces" else _let_definition_go)


def _let_namespace_go(namespace: Manifest) -> None:
    namespace["spec"].pop("finalizers", None)


def _let_definition_go(crd: Manifest) -> None:
    kept = [f for f in crd["metadata"].get("finalizers") or [] if f != custom_resources.CLEANUP_FINALIZER]
    crd["metadata"]["finalizers"] = kept
