"""Unknown fields: found, named by path, and dropped.

The one idea: a value is walked together with its schema; an object's key that the schema neither names nor allows by
additionalProperties or x-kubernetes-preserve-unknown-fields is unknown. Whether that is an error, a warning or nothing
is the caller's (`fieldValidation`). Nulls where the schema does not allow them mean "absent", as in Go.
"""

from typing import Any

from ptlocal.apiserver.kinds import builtin_schemas

Schema = dict[str, Any]
PRESERVE = "x-kubernetes-preserve-unknown-fields"
_TYPE_META = ("apiVersion", "kind")


def prune_object(obj: dict[str, Any], schema: Schema) -> list[str]:
    """Prune a whole object in place; returns the unknown paths. apiVersion, kind and metadata are always known."""
    unknown: list[str] = []
    meta = obj.get("metadata")
    if isinstance(meta, dict):
        _prune(meta, builtin_schemas.schema_of("ObjectMeta"), "metadata", unknown)
    rest = {key: value for key, value in obj.items() if key not in (*_TYPE_META, "metadata")}
    _prune(rest, schema, "", unknown)
    for key in list(obj):
        if key not in rest and key not in (*_TYPE_META, "metadata"):
            del obj[key]
    return unknown


def _prune(value: Any, schema: Schema, path: str, unknown: list[str]) -> None:
    if isinstance(value, list):
        items = schema.get("items")
        if isinstance(items, dict):
            for index, item in enumerate(value):
                _prune(item, items, f"{path}[{index}]", unknown)
    elif isinstance(value, dict):
        _prune_map(value, schema, path, unknown)


def _prune_map(value: dict[str, Any], schema: Schema, path: str, unknown: list[str]) -> None:
    properties: dict[str, Schema] = schema.get("properties") or {}
    additional = schema.get("additionalProperties")
    keeps_all = bool(schema.get(PRESERVE)) or additional is True or not _is_known_shape(schema)
    embedded = schema.get("x-kubernetes-embedded-resource")
    for key in list(value):
        here = f"{path}.{key}" if path else key
        child = properties.get(key)
        if embedded and key == "metadata" and isinstance(value[key], dict):
            _prune(value[key], builtin_schemas.schema_of("ObjectMeta"), here, unknown)
        elif embedded and key in _TYPE_META:
            continue
        elif child is not None:
            _prune(value[key], child, here, unknown)
        elif isinstance(additional, dict):
            _prune(value[key], additional, here, unknown)
        elif not keeps_all:
            unknown.append(here)
            del value[key]


def _is_known_shape(schema: Schema) -> bool:
    """Return False for a schema without keys, such as int-or-string: it holds no object."""
    return schema.get("type") == "object" or bool(schema.get("properties"))


def drop_nulls(value: Any, schema: Schema) -> None:
    """Remove null properties where the schema gives a default or a type and does not say nullable, in place."""
    if isinstance(value, list):
        items = schema.get("items")
        if isinstance(items, dict):
            for item in value:
                drop_nulls(item, items)
        return
    if not isinstance(value, dict):
        return
    properties: dict[str, Schema] = schema.get("properties") or {}
    additional = schema.get("additionalProperties")
    for key in list(value):
        child = properties.get(key) or (additional if isinstance(additional, dict) else None)
        if child is None:
            continue
        if value[key] is None and not child.get("nullable") and not child.get(PRESERVE) and key in properties:
            del value[key]
        else:
            drop_nulls(value[key], child)
