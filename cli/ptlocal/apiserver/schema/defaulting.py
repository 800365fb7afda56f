"""Defaults of a structural schema, filled into an object in place.

A default applies where the key is absent in an object that is there; defaults of a default apply in turn. An object
that is absent gets no defaults of its fields, as in Kubernetes.
"""

import copy
from typing import Any

Schema = dict[str, Any]


def apply_defaults(value: Any, schema: Schema) -> None:
    """Fill in the defaults of a schema, in place."""
    if isinstance(value, list):
        items = schema.get("items")
        if isinstance(items, dict):
            for item in value:
                apply_defaults(item, items)
        return
    if not isinstance(value, dict):
        return
    properties: dict[str, Schema] = schema.get("properties") or {}
    for key, child in properties.items():
        if "default" in child and (key not in value or (value[key] is None and not child.get("nullable"))):
            value[key] = copy.deepcopy(child["default"])
        if key in value:
            apply_defaults(value[key], child)
    additional = schema.get("additionalProperties")
    if isinstance(additional, dict):
        for key, item in value.items():
            if key not in properties:
                apply_defaults(item, additional)
