"""Tables, the form in which kubectl requests lists: columns by kind, one row per object.

Custom resources bring their own columns; those of the built-in kinds are in printer_columns.py.
"""

import json
from typing import Any

from ptlocal.apiserver.kinds.builtin_kinds import Column, Kind
from ptlocal.apiserver.output import jsonpath, printer_columns
from ptlocal.apiserver.output.ages import age

Manifest = dict[str, Any]
_NAME = {
    "name": "Name",
    "type": "string",
    "format": "name",
    "description": "Name must be unique within a namespace.",
    "priority": 0,
}


def partial(obj: Manifest) -> Manifest:
    """Return the object's metadata only."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def table(kind: Kind, objects: list[Manifest], meta: Manifest, include: str) -> Manifest:
    """Return the table of the objects."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "columnDefinitions": _definitions(kind),
        "rows": [{"cells": _cells(kind, obj), **_row_object(kind, obj, include)} for obj in objects],
    }


def _row_object(kind: Kind, obj: Manifest, include: str) -> Manifest:
    if include == "None":
        return {}
    if include == "Object":
        return {"object": {"apiVersion": kind.api_version, "kind": kind.kind, **obj}}
    return {"object": partial(obj)}


def _definitions(kind: Kind) -> list[Manifest]:
    columns = kind.columns if kind.is_custom else printer_columns.columns_of(kind.storage_key)
    made = [
        {"name": c.name, "type": c.type, "format": c.format, "description": c.description, "priority": c.priority}
        for c in columns
    ]
    if kind.plural == "events":  # an event's content matters more than its name
        return [*made, {**_NAME, "priority": 1}]
    return [_NAME, *made]


def _cells(kind: Kind, obj: Manifest) -> list[Any]:
    if kind.is_custom:
        return [obj["metadata"]["name"], *(_custom_cell(column, obj) for column in kind.columns)]
    cells = printer_columns.cells_of(kind.storage_key, obj)
    return [*cells, obj["metadata"]["name"]] if kind.plural == "events" else [obj["metadata"]["name"], *cells]


def _custom_cell(column: Column, obj: Manifest) -> Any:
    values = jsonpath.find(column.json_path, obj)
    if not values:
        return "<unknown>" if column.type == "date" else None
    value = values[0]
    if column.type == "date":
        return age(value)
    if column.type == "integer":
        return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    if column.type == "number":
        return value if isinstance(value, int | float) else None
    if column.type == "boolean":
        return value if isinstance(value, bool) else None
    if len(values) > 1:
        return ",".join(map(_text, values))
    return _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
