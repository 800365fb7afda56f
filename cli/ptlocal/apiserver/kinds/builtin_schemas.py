"""The schemas of the built-in kinds, as linked dicts.

builtin.json refers to definitions by `$ref`. So that other code need not follow references, they are replaced by the
definition itself. The result is a graph (JSONSchemaProps contains itself), which is fine because the walked data is
finite. OpenAPI documents are written from the unlinked form.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

Schema = dict[str, Any]


@cache
def unlinked() -> dict[str, Schema]:
    """Return the schemas with `$ref`s."""
    parsed: dict[str, Schema] = json.loads(Path(__file__).with_name("builtin.json").read_text())
    return parsed


@cache
def linked() -> dict[str, Schema]:
    """Return the schemas with every `$ref` replaced by its definition."""
    definitions: dict[str, Schema] = json.loads(Path(__file__).with_name("builtin.json").read_text())

    def link(schema: Schema) -> Schema:
        """Replace the references in a schema, in place."""
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
    """Return the linked schema of a definition."""
    return linked()[name]


def expanded(name: str) -> Schema:
    """Return a copy without references, to embed in a CRD; only for definitions that do not contain themselves."""
    copy: Schema = json.loads(json.dumps(linked()[name]))
    return copy
