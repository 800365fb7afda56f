"""Sets of fields of an object, as managedFields keeps them (FieldsV1), and what changed between two objects.

A path is a tuple of elements as FieldsV1 writes them: `f:name` (a key of a map), `k:{"name":"c"}` (an item of a list
that is a map by those keys), `v:"x"` (an item of a set). The schema decides where a value is one leaf: scalars, atomic
lists (the default) and atomic maps. Everything here is pure.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Schema = dict[str, Any]
Path = tuple[str, ...]
Paths = set[Path]
MISSING: Any = object()


@dataclass
class Difference:
    """The changed fields between two states of an object; of nested fields those that are owned separately."""

    added: Paths = field(default_factory=set)
    modified: Paths = field(default_factory=set)
    removed: Paths = field(default_factory=set)


def children(value: Any, schema: Schema) -> dict[str, tuple[Any, Schema]] | None:
    """Return the separately owned parts by path element; None for a leaf."""
    if isinstance(value, dict):
        if schema.get("x-kubernetes-map-type") == "atomic":
            return None
        properties: dict[str, Schema] = schema.get("properties") or {}
        additional = schema.get("additionalProperties")
        rest = additional if isinstance(additional, dict) else {}
        return {f"f:{key}": (item, properties.get(key) or rest) for key, item in value.items()}
    if isinstance(value, list):
        return _items(value, schema)
    return None


def _items(value: list[Any], schema: Schema) -> dict[str, tuple[Any, Schema]] | None:
    kind = schema.get("x-kubernetes-list-type")
    items = schema.get("items") or {}
    if kind == "set":
        parts = {f"v:{_json(item)}": (item, items) for item in value}
    elif kind == "map":
        keyed = [(item_key(item, schema), item) for item in value]
        if any(key is None for key, _ in keyed):
            return None
        parts = {f"k:{key}": (item, items) for key, item in keyed}
    else:
        return None
    return parts if len(parts) == len(value) else None


def item_key(item: Any, schema: Schema) -> str | None:
    """Return the identity of a list item, its map keys as JSON with defaults; None if it has none of them."""
    if not isinstance(item, dict):
        return None
    properties = (schema.get("items") or {}).get("properties") or {}
    keys = {}
    for name in schema.get("x-kubernetes-list-map-keys") or []:
        if name in item:
            keys[name] = item[name]
        elif "default" in properties.get(name, {}):
            keys[name] = properties[name]["default"]
    return _json(keys) if keys else None


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def stated(value: Any, schema: Schema, path: Path = ()) -> Paths:
    """Return the fields that an applied configuration states."""
    parts = children(value, schema)
    if not parts:
        return {path} if path else set()
    paths: Paths = set()
    for element, (item, item_schema) in parts.items():
        here = (*path, element)
        paths |= stated(item, item_schema, here)
        if element.startswith("k:"):
            paths.add(here)
    return paths


def difference(old: Any, new: Any, schema: Schema) -> Difference:
    """Return the difference between two states of an object."""
    changes = Difference()
    _compare(old, new, schema, (), changes)
    return changes


def _compare(old: Any, new: Any, schema: Schema, path: Path, changes: Difference) -> None:
    if old is MISSING:
        changes.added.update(_nodes(new, schema, path))
    elif new is MISSING:
        changes.removed.update(_nodes(old, schema, path))
    elif type(old) is not type(new) or old != new:
        before, after = children(old, schema), children(new, schema)
        if before is None or after is None:
            changes.modified.add(path)
            return
        nothing: tuple[Any, Schema] = (MISSING, {})
        for element in {**before, **after}:
            was, is_now = before.get(element, nothing), after.get(element, nothing)
            item_schema = is_now[1] if is_now[0] is not MISSING else was[1]
            _compare(was[0], is_now[0], item_schema, (*path, element), changes)


def _nodes(value: Any, schema: Schema, path: Path) -> Iterator[Path]:
    if path:
        yield path
    for element, (item, item_schema) in (children(value, schema) or {}).items():
        yield from _nodes(item, item_schema, (*path, element))


def to_fields_v1(paths: Paths) -> dict[str, Any]:
    """Encode paths as FieldsV1."""
    tree: dict[str, Any] = {}
    for path in sorted(paths):
        node = tree
        for element in path:
            node = node.setdefault(element, {})
        node["."] = {}
    _drop_leaf_dots(tree)
    return tree


def _drop_leaf_dots(node: dict[str, Any]) -> None:
    for element, child in node.items():
        if element == ".":
            continue
        if set(child) == {"."}:
            del child["."]
        else:
            _drop_leaf_dots(child)


def from_fields_v1(tree: Any, path: Path = ()) -> Paths:
    """Parse FieldsV1."""
    if not isinstance(tree, dict):
        return set()
    if not tree:
        return {path} if path else set()
    paths: Paths = set()
    for element, child in tree.items():
        if element == ".":
            paths.add(path)
        else:
            paths |= from_fields_v1(child, (*path, element))
    return paths


def shown(path: Path) -> str:
    """Format a path for error messages: `.spec.containers[name="c"].image`."""
    text = ""
    for element in path:
        kind, _, rest = element.partition(":")
        if kind == "f":
            text += f".{rest}"
        elif kind == "k":
            text += "[" + ",".join(f"{key}={_json(value)}" for key, value in json.loads(rest).items()) + "]"
        else:
            text += f"[={rest}]"
    return text


def is_under(path: Path, root: Path) -> bool:
    """Return True if the path is below the root."""
    return path[: len(root)] == root
