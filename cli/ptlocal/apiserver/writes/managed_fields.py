"""Field ownership: metadata.managedFields, kept on every write as on a real server.

An ordinary write takes the fields that it changes from all other managers. Server-side apply (server_side_apply.py)
uses the same `Managers`. Left out: merging the oldest entries when there are more than ten, and versions other than the
one an entry was written in.
"""

from dataclasses import dataclass
from typing import Any

from ptlocal.apiserver.kinds import builtin_schemas
from ptlocal.apiserver.kinds.builtin_kinds import Kind
from ptlocal.apiserver.write_options import WriteOptions
from ptlocal.apiserver.writes import field_sets, object_meta
from ptlocal.apiserver.writes.field_sets import Path, Paths

Manifest = dict[str, Any]
Schema = dict[str, Any]
_NEVER_OWNED: tuple[Path, ...] = (
    ("f:apiVersion",),
    ("f:kind",),
    ("f:metadata",),
    *(
        ("f:metadata", f"f:{name}")
        for name in (
            "name",
            "namespace",
            "creationTimestamp",
            "selfLink",
            "uid",
            "generation",
            "resourceVersion",
            "managedFields",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
        )
    ),
)


@dataclass(frozen=True)
class Manager:
    """The identity of one entry."""

    name: str
    operation: str
    api_version: str
    subresource: str = ""


@dataclass
class Entry:
    """The fields that one manager owns, and when it last set one (RFC 3339)."""

    paths: Paths
    time: str


Managers = dict[Manager, Entry]


def whole_schema(kind: Kind) -> Schema:
    """Return the schema of the whole object: a CRD's schema has no metadata."""
    properties = {**(kind.schema.get("properties") or {}), "metadata": builtin_schemas.schema_of("ObjectMeta")}
    return {**kind.schema, "properties": properties}


def decode(entries: Any) -> Managers:
    """Parse managedFields."""
    managers: Managers = {}
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and entry.get("manager") and entry.get("operation"):
            manager = Manager(
                entry["manager"], entry["operation"], entry.get("apiVersion", ""), entry.get("subresource", "")
            )
            managers[manager] = Entry(field_sets.from_fields_v1(entry.get("fieldsV1")), entry.get("time", ""))
    return managers


def encode(managers: Managers) -> list[Manifest]:
    """Return managedFields."""
    entries_v1 = []
    for manager, entry in sorted(managers.items(), key=lambda m: (m[0].operation, m[1].time, m[0].name)):
        if not entry.paths:
            continue
        fields = {
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": manager.api_version,
            "time": entry.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": field_sets.to_fields_v1(entry.paths),
        }
        if manager.subresource:
            fields["subresource"] = manager.subresource
        entries_v1.append(fields)
    return entries_v1


def ownable(paths: Paths, kind: Kind, subresource: str) -> Paths:
    """Remove fields that nobody can own, and those that this endpoint cannot change."""
    kept = {path for path in paths if path not in _NEVER_OWNED}
    status: Path = ("f:status",)
    if subresource == "status":
        return {path for path in kept if field_sets.is_under(path, status)}
    if kind.has_status:
        return {path for path in kept if not field_sets.is_under(path, status)}
    return kept


def own_changes(obj: Manifest, old: Manifest | None, kind: Kind, options: WriteOptions, sent: Any) -> None:
    """Set managedFields after an ordinary write, in place. `sent` is the client's value of the field."""
    managers = _base(old, sent)
    schema = whole_schema(kind)
    changed = field_sets.difference(_bare(old) if old is not None else {}, _bare(obj), schema)
    taken = ownable(changed.added | changed.modified, kind, options.subresource)
    release(managers, changed.removed)
    mine = Manager(options.manager, "Update", kind.api_version, options.subresource)
    for manager, entry in managers.items():
        if manager != mine:
            entry.paths = entry.paths - taken
    if taken:
        before = managers.get(mine, Entry(set(), ""))
        managers[mine] = Entry(before.paths | taken, object_meta.now())
    store(obj, managers, old)


def _base(old: Manifest | None, sent: Any) -> Managers:
    """Return the ownership before the write; a client resets it with an empty list or entry, or replaces it."""
    if sent in ([], [{}]):
        return {}
    reset = decode(sent)
    return reset or (decode(old["metadata"].get("managedFields")) if old else {})


def _bare(obj: Manifest) -> Manifest:
    """Remove what is never owned, so that it need not be walked."""
    meta = {key: value for key, value in obj["metadata"].items() if ("f:metadata", f"f:{key}") not in _NEVER_OWNED}
    return {**{key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}, "metadata": meta}


def release(managers: Managers, removed: Paths) -> None:
    """Release the ownership of removed fields and everything in them."""
    if not removed:
        return
    for entry in managers.values():
        entry.paths = {
            path for path in entry.paths if not any(path[:length] in removed for length in range(1, len(path) + 1))
        }


def store(obj: Manifest, managers: Managers, old: Manifest | None) -> None:
    """Write the entries; unchanged ownership keeps its times, so that a no-op write stays one."""
    old_managers = decode(old["metadata"].get("managedFields")) if old else {}
    for manager, entry in managers.items():
        before = old_managers.get(manager)
        if before is not None and before.paths == entry.paths:
            entry.time = before.time
    entries_v1 = encode(managers)
    if entries_v1:
        obj["metadata"]["managedFields"] = entries_v1
    else:
        obj["metadata"].pop("managedFields", None)
