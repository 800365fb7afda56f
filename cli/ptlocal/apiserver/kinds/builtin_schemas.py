"""The schemas of the built-in kinds, as linked dicts.

builtin.json names other definitions by `$ref`. Walking code should not know about references, so they are replaced by
the definition itself: the result is a graph (JSONSchemaProps holds itself), which is fine since only data, which is
finite, decides how deep a walk goes. OpenAPI documents are written from the unlinked form.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

Schema = dict[str, Any]


@cache
def unlinked() -> dict[str, Schema]:
    parsed: dict[str, Schema] = json.loads(Path(__file__).with_name("builtin.json").read_text())
    return parsed


@cache
def linked() -> dict[str, Schema]:
    definitions: dict[str, Schema] = json.loads(Path(__file__).with_name("builtin.json").read_text())

    def link(schema: Schema) -> Schema:
        if "$ref" in schema:
            return definitions[schema["$ref"]]
        for key in ("items", "additionalProperties"):
            if isinstance(schema.get(key), dict):
                schema[key] = link(schema[key])
        for name, child in schema.get("properties", {}).items():
            schema["properties"][name] = link(child)
        return schema

    for definition in list(definitions.values()):
        link(definition)
    return definitions


def schema_of(name: str) -> Schema:
    return linked()[name]


def expanded(name: str) -> Schema:
    """A copy without references, for embedding in a CRD; only for definitions that do not hold themselves."""
    copy: Schema = json.loads(json.dumps(linked()[name]))
    return copy
