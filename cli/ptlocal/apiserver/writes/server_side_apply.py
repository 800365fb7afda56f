"""Server-side apply: a configuration states the fields that its manager wants, and the server computes the rest.

Steps: merge the configuration into the live object along the schema; drop what this manager stated before and no longer
states, unless another manager owns it; a field that would change and belongs to another manager is a conflict, unless
forced. The result is stored like any update.
"""

import copy
from typing import Any

from ptlocal.apiserver.errors import StatusError, bad_request, not_found
from ptlocal.apiserver.kinds.builtin_kinds import Kind
from ptlocal.apiserver.write_options import WriteOptions
from ptlocal.apiserver.writes import admission, field_sets, managed_fields, object_meta
from ptlocal.apiserver.writes.field_sets import Path, Paths
from ptlocal.apiserver.writes.managed_fields import Entry, Manager, Managers
from ptlocal.apiserver.writes.object_writer import Writer

Manifest = dict[str, Any]
Schema = dict[str, Any]
_BEFORE = "before-first-apply"


def apply(
    writer: Writer, kind: Kind, namespace: str, name: str, sent: Any, options: WriteOptions
) -> tuple[Manifest, bool]:
    """Apply a configuration; return the stored object, and True if it is new."""
    _decode(sent, kind, name, namespace)
    live = writer.find(kind, namespace, name)
    schema = managed_fields.whole_schema(kind)
    own_manager = Manager(options.manager, "Apply", kind.api_version, options.subresource)
    own_fields = managed_fields.ownable(field_sets.stated(sent, schema), kind, options.subresource)
    if live is None:
        if options.subresource:
            raise not_found(kind.named(name))
        entries = managed_fields.encode({own_manager: Entry(own_fields, object_meta.now())})
        return writer.create(kind, namespace, sent, options, managed=entries), True
    managers = _known_managers(live, kind, schema)
    last = managers.pop(own_manager, Entry(set(), "")).paths
    merged = merge(live, sent, schema)
    _drop(merged, schema, _unwanted(last - own_fields, own_fields, managers))
    changed = field_sets.difference(live, merged, schema)
    changed_fields = managed_fields.ownable(changed.added | changed.modified, kind, options.subresource)
    _settle_conflicts(managers, changed_fields, options.force)
    managed_fields.release(managers, managed_fields.ownable(changed.removed, kind, options.subresource))
    managers[own_manager] = Entry(own_fields, object_meta.now())
    merged["metadata"]["resourceVersion"] = sent["metadata"].get("resourceVersion")
    merged["metadata"].pop("managedFields", None)
    return writer.update(kind, namespace, name, merged, options, managers=managers), False


def _decode(sent: Any, kind: Kind, name: str, namespace: str) -> None:
    if isinstance(sent, dict) and isinstance(sent.get("metadata"), dict) and sent["metadata"].get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    if not isinstance(sent, dict) or not sent.get("apiVersion") or not sent.get("kind"):
        raise bad_request("invalid object type: /, Kind=")
    try:
        admission.decode(sent, kind, "Strict")
    except StatusError as error:
        if "strict decoding error" not in error.message:
            raise
        fields = error.message.partition("unknown field ")[2]
        first = fields.split(",")[0].strip('"')
        raise bad_request(
            f"failed to create typed patch object ({sent['metadata'].get('namespace', '')}/{name}; "
            f"{kind.group}/{kind.version}, Kind={kind.kind}): .{first}: field not declared in schema"
        ) from None
    if sent["metadata"].setdefault("name", name) != name:
        raise bad_request(
            f"the name of the object ({sent['metadata']['name']}) does not match the name on the URL ({name})"
        )


def _known_managers(live: Manifest, kind: Kind, schema: Schema) -> Managers:
    """Return the field managers; fields of an object without managedFields get one synthetic earlier manager."""
    if "managedFields" in live["metadata"]:
        return managed_fields.decode(live["metadata"]["managedFields"])
    everything = managed_fields.ownable(field_sets.stated(live, schema), kind, "")
    return {Manager(_BEFORE, "Update", kind.api_version): Entry(everything, object_meta.now())}


def merge(live: Any, sent: Any, schema: Schema) -> Any:
    """Merge the configuration into the live object; maps, sets and keyed lists are merged by their parts."""
    before, stated = field_sets.children(live, schema), field_sets.children(sent, schema)
    if before is None or stated is None or type(live) is not type(sent):
        return copy.deepcopy(sent)
    parts = {element: copy.deepcopy(item) for element, (item, _) in before.items()}
    for element, (item, item_schema) in stated.items():
        parts[element] = merge(before[element][0], item, item_schema) if element in before else copy.deepcopy(item)
    if isinstance(live, dict):
        return {element[2:]: item for element, item in parts.items()}
    return [parts[element] for element in _interleaved(list(before), list(stated))]


def _interleaved(live: list[str], sent: list[str]) -> list[str]:
    """Keep the configuration's order, and other items before the shared item that they preceded."""
    order: list[str] = []
    shared = [element for element in sent if element in live]
    waiting = list(sent)
    for element in live:
        if element not in sent:
            order.append(element)
        elif shared and element == shared[0]:
            while waiting[0] != element:
                order.append(waiting.pop(0))
            order.append(waiting.pop(0))
            shared.pop(0)
        # else: shared, and added later
    return order + waiting


def _unwanted(candidates: Paths, own_fields: Paths, managers: Managers) -> Paths:
    """Return the fields that this manager gave up and nobody else owns, themselves or in part."""
    kept: Paths = set()
    for paths in (own_fields, *(entry.paths for entry in managers.values())):
        for path in paths:
            kept.update(path[:length] for length in range(1, len(path) + 1))
    return candidates - kept


def _drop(value: Any, schema: Schema, paths: Paths, path: Path = ()) -> None:
    """Remove the paths, and maps that become empty by it, in place."""
    parts = field_sets.children(value, schema)
    if not paths or parts is None:
        return
    for element, (item, item_schema) in parts.items():
        here = (*path, element)
        if here in paths:
            _remove(value, element, item)
            continue
        had_parts = bool(item)
        _drop(item, item_schema, paths, here)
        if had_parts and not item and isinstance(item, dict | list):
            _remove(value, element, item)


def _remove(container: Any, element: str, item: Any) -> None:
    if isinstance(container, dict):
        del container[element[2:]]
    else:
        container[:] = [other for other in container if other is not item]


def _settle_conflicts(managers: Managers, changed: Paths, force: bool) -> None:
    conflicts = [(manager, path) for manager, entry in managers.items() for path in sorted(entry.paths & changed)]
    if conflicts and not force:
        raise _conflict(conflicts)
    for manager, path in conflicts:
        managers[manager].paths.discard(path)


def _conflict(conflicts: list[tuple[Manager, Path]]) -> StatusError:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f"conflict with {_named(manager)}",
            "field": field_sets.shown(path),
        }
        for manager, path in conflicts
    ]
    if len(conflicts) == 1:
        manager, path = conflicts[0]
        text = f"Apply failed with 1 conflict: conflict with {_named(manager)}: {field_sets.shown(path)}"
    else:
        lines = []
        for manager in sorted({manager for manager, _ in conflicts}, key=lambda m: m.name):
            lines.append(f"conflicts with {_named(manager)}:")
            lines += [f"- {field_sets.shown(path)}" for other, path in conflicts if other == manager]
        text = f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)
    return StatusError(409, "Conflict", text, {"causes": causes})


def _named(manager: Manager) -> str:
    text = f'"{manager.name}"'
    if manager.subresource:
        text += f' with subresource "{manager.subresource}"'
    if manager.operation == "Update":
        text += f" using {manager.api_version}"
    return text
