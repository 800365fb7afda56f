"""Create, update and delete: the semantics of every write, over a store, without HTTP.

Each verb has the same steps: load the object, prepare, check, own (managedFields), store. Nothing awaits between
reading and storing, so in the server's one thread every write is atomic.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ptlocal.apiserver.errors import (
    StatusError,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid,
    invalid_value,
    modified,
    not_found,
)
from ptlocal.apiserver.kinds.builtin_kinds import Kind
from ptlocal.apiserver.rules import rules_of
from ptlocal.apiserver.schema import defaulting
from ptlocal.apiserver.storage.store import Store
from ptlocal.apiserver.write_options import DeleteOptions, WriteOptions
from ptlocal.apiserver.writes import admission, deletion, managed_fields, object_meta
from ptlocal.apiserver.writes.managed_fields import Managers

Manifest = dict[str, Any]
_GENERATE_TRIES = 8


class Writer:
    """The verbs that write."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """Return the object, or None. Fields that its definition gained since it was stored have their defaults."""
        stored = self._store.get(kind.storage_key, namespace, name)
        if stored is not None and kind.is_custom:
            defaulting.apply_defaults(stored, kind.schema)
        return None if stored is None else {"apiVersion": kind.api_version, "kind": kind.kind, **stored}

    def current(self, kind: Kind, namespace: str, name: str) -> Manifest:
        """Return the object, or raise a 404."""
        obj = self.find(kind, namespace, name)
        if obj is None:
            raise not_found(kind.named(name))
        return obj

    def create(
        self, kind: Kind, namespace: str, obj: Manifest, options: WriteOptions, *, managed: list[Manifest] | None = None
    ) -> Manifest:
        """Create an object. `managed`: the managedFields from server-side apply."""
        meta = obj["metadata"]
        _place(kind, namespace, meta)
        if meta.get("resourceVersion") and not options.dry_run:
            raise bad_request("resourceVersion should not be set on objects to be created")
        name_given = bool(meta.get("name"))
        self._refuse_missing_namespace(kind, namespace, meta)
        for last in [False] * (_GENERATE_TRIES - 1) + [True]:
            if not name_given and meta.get("generateName"):
                meta["name"] = object_meta.generated_name(meta["generateName"])
            try:
                return self._create_named(
                    kind, namespace, copy.deepcopy(obj) if not name_given else obj, options, managed
                )
            except StatusError as error:
                if name_given or last or error.reason != "AlreadyExists":
                    raise
        raise AssertionError("unreachable: the last try returns or raises")

    def _create_named(
        self, kind: Kind, namespace: str, obj: Manifest, options: WriteOptions, managed: list[Manifest] | None
    ) -> Manifest:
        meta = obj["metadata"]
        sent_managed = meta.pop("managedFields", None)
        object_meta.stamp_new(meta, kind)
        if kind.has_status and kind.storage_key != "/nodes":  # a kubelet registers its node with its status
            obj.pop("status", None)
        admission.fill_in(obj, kind)
        rules_of(kind.storage_key).create(obj)
        admission.check(obj, kind)
        self._refuse_missing_service_account(kind, namespace, obj)
        if self._store.get(kind.storage_key, namespace, meta["name"]) is not None:
            raise already_exists(kind.named(meta["name"]))
        if managed is not None:
            meta["managedFields"] = managed
        else:
            managed_fields.own_changes(obj, None, kind, options, sent_managed)
        if options.dry_run:
            return obj
        return self._store.write(kind, obj, "ADDED")

    def update(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        obj: Manifest,
        options: WriteOptions,
        *,
        requires_version: bool = False,
        managers: Managers | None = None,
    ) -> Manifest:
        """Replace an object by a decoded one. `managers`: the owners from server-side apply."""
        old = self.current(kind, namespace, name)
        meta = obj["metadata"]
        _place(kind, namespace, meta)
        if meta.setdefault("name", name) != name:
            raise bad_request(f"the name of the object ({meta['name']}) does not match the name on the URL ({name})")
        self._check_versions(kind, old, meta, requires_version)
        sent_managed = meta.pop("managedFields", None)
        object_meta.keep_server_set(meta, old["metadata"])
        obj = _merge_by_subresource(kind, obj, old, options.subresource)
        if "managedFields" in old["metadata"]:
            obj["metadata"]["managedFields"] = old["metadata"]["managedFields"]
        admission.fill_in(obj, kind)
        admission.check(obj, kind, old, options.subresource)
        _bump_generation(kind, obj, old)
        if managers is not None:
            managed_fields.store(obj, managers, old)
        else:
            managed_fields.own_changes(obj, old, kind, options, sent_managed)
        if options.dry_run or obj == old:
            return obj
        if deletion.is_finished(obj, kind):
            return self._store.write(kind, obj, "DELETED")
        return self._store.write(kind, obj, "MODIFIED")

    def change(self, kind: Kind, namespace: str, name: str, edit: Callable[[Manifest], None]) -> Manifest:
        """Edit an object on the server's behalf (its status, a finalizer): no checks, no field ownership."""
        old = self.current(kind, namespace, name)
        obj = copy.deepcopy(old)
        edit(obj)
        object_meta.tidy(obj["metadata"])
        if obj == old:
            return obj
        return self._store.write(kind, obj, "DELETED" if deletion.is_finished(obj, kind) else "MODIFIED")

    def delete(self, kind: Kind, namespace: str, name: str, options: DeleteOptions) -> tuple[Manifest, bool]:
        """Delete an object; return it as it was or is now, and True if it is removed."""
        old = self.current(kind, namespace, name)
        obj, is_gone = deletion.outcome(old, kind, options)
        if options.dry_run or (obj == old and not is_gone):
            return obj, is_gone
        return self._store.write(kind, obj, "DELETED" if is_gone else "MODIFIED"), is_gone

    def _refuse_missing_namespace(self, kind: Kind, namespace: str, meta: Manifest) -> None:
        if not kind.namespaced:
            return
        parent = self._store.get("/namespaces", "", namespace)
        if parent is None:
            raise StatusError(
                404, "NotFound", f'namespaces "{namespace}" not found', {"name": namespace, "kind": "namespaces"}
            )
        if parent["metadata"].get("deletionTimestamp"):
            error = forbidden(
                kind.named(meta.get("name") or meta.get("generateName") or ""),
                f"unable to create new content in namespace {namespace} because it is being terminated",
            )
            error.details["causes"] = [
                {
                    "reason": "NamespaceTerminating",
                    "field": "metadata.namespace",
                    "message": f"namespace {namespace} is being terminated",
                }
            ]
            raise error

    def _refuse_missing_service_account(self, kind: Kind, namespace: str, obj: Manifest) -> None:
        """Refuse a pod whose ServiceAccount does not exist. Every namespace has `default`, without an object."""
        name = obj["spec"]["serviceAccountName"] if kind.storage_key == "/pods" else "default"
        if name != "default" and self._store.get("/serviceaccounts", namespace, name) is None:
            why = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
            raise forbidden(kind.named(obj["metadata"]["name"]), why)

    def _check_versions(self, kind: Kind, old: Manifest, meta: Manifest, required: bool) -> None:
        what = kind.named(old["metadata"]["name"])
        if meta.get("uid") and meta["uid"] != old["metadata"]["uid"]:
            raise conflict(
                what,
                f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: "
                f"{old['metadata']['uid']}",
            )
        version = meta.get("resourceVersion")
        if not version and required and not kind.allows_unconditional_update:
            error = invalid_value("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid(replace(what, kind=kind.plural), [error])
        if version and version != old["metadata"]["resourceVersion"]:
            raise modified(what)


def _place(kind: Kind, namespace: str, meta: Manifest) -> None:
    """Set the namespace from the URL; refuse a body with another one."""
    if not kind.namespaced:
        meta.pop("namespace", None)
        return
    if meta.setdefault("namespace", namespace) not in ("", namespace):
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    meta["namespace"] = namespace


def _merge_by_subresource(kind: Kind, obj: Manifest, old: Manifest, subresource: str) -> Manifest:
    """Keep what the endpoint cannot change: status for the main one, everything else for /status."""
    if subresource == "status":
        kept = copy.deepcopy(old)
        if "status" in obj:
            kept["status"] = obj["status"]
        else:
            kept.pop("status", None)
        if not kind.is_custom:  # built-in kinds let a status update change labels, annotations and finalizers too
            kept["metadata"] = obj["metadata"]
        return kept
    if kind.has_status and not subresource:
        obj.pop("status", None)
        if "status" in old:
            obj["status"] = old["status"]
    return obj


def _bump_generation(kind: Kind, obj: Manifest, old: Manifest) -> None:
    if not kind.has_generation:
        return
    ignored = {"apiVersion", "kind", "metadata"} | ({"status"} if kind.has_status else set())
    if {k: v for k, v in obj.items() if k not in ignored} != {k: v for k, v in old.items() if k not in ignored}:
        obj["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
