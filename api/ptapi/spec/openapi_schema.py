"""The structural schema (OpenAPI v3, as in a CRD) of a pydantic model.

The CRD, the reference page and the messages about invalid values derive from it. References are inlined, `X | None` is
X that may be absent, exclusive bounds are OpenAPI 3.0's booleans. Left out: rules across fields (`ptapi.validation`),
which `ptapi.crd.definition` adds as CEL.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

Schema = dict[str, Any]

INT_OR_STRING = "x-kubernetes-int-or-string"
ANY_SCALAR = "x-kubernetes-preserve-unknown-fields"
_COPIED = (
    "type", "format", "pattern", "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
    "minimum", "maximum", "required", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
    INT_OR_STRING, ANY_SCALAR,
)  # fmt: skip


@cache
def structural(model: type[BaseModel]) -> Schema:
    """Return the schema of a model, camelCase, without references. It is cached and shared: do not change it."""
    document = model.model_json_schema(by_alias=True, schema_generator=_WithDocs, mode="validation")
    return _node(document, document.get("$defs", {}))


def child(schema: Schema, step: str | int) -> Schema | None:
    """Return the schema one step down (a property, a map's value or a list's entry), or None."""
    if isinstance(step, int):
        node = schema.get("items")
    else:
        node = schema.get("properties", {}).get(step, schema.get("additionalProperties"))
    return node if isinstance(node, dict) else None


def _node(raw: Schema, definitions: dict[str, Schema]) -> Schema:
    if "$ref" in raw:
        # The field's own doc and default, next to the reference, override the referenced model's.
        target = definitions[raw["$ref"].removeprefix("#/$defs/")]
        raw = {**target, **{key: value for key, value in raw.items() if key != "$ref"}}
    choices = [choice for choice in raw.get("anyOf", []) if choice.get("type") != "null"]
    if len(choices) == 1:
        rest = {key: value for key, value in raw.items() if key != "anyOf"}
        return _node({**choices[0], **rest}, definitions)
    node = _described(raw)
    if choices:
        return node | _union(choices) | _default(raw)
    node |= {key: raw[key] for key in _COPIED if key in raw}
    node |= _bounds(raw) | _enum(raw) | _default(raw)
    if "properties" in raw:
        node["properties"] = {name: _node(field, definitions) for name, field in raw["properties"].items()}
    if isinstance(raw.get("additionalProperties"), dict):
        node["additionalProperties"] = _node(raw["additionalProperties"], definitions)
    if "items" in raw:
        node["items"] = _node(raw["items"], definitions)
    return node


def _described(raw: Schema) -> Schema:
    return {"description": " ".join(raw["description"].split())} if "description" in raw else {}


def _default(raw: Schema) -> Schema:
    return {"default": raw["default"]} if raw.get("default") is not None else {}


def _enum(raw: Schema) -> Schema:
    values = raw.get("enum", [raw["const"]] if "const" in raw else [])
    return {"enum": values} if values else {}


def _bounds(raw: Schema) -> Schema:
    bounds: Schema = {}
    for side in ("Minimum", "Maximum"):
        if f"exclusive{side}" in raw:
            bounds |= {side.lower(): raw[f"exclusive{side}"], f"exclusive{side}": True}
    return bounds


def _union(choices: list[Schema]) -> Schema:
    """Return the schema of the two supported unions: whole number or word, and word or boolean."""
    numbers = [choice for choice in choices if choice["type"] == "integer"]
    words = [value for choice in choices if choice["type"] == "string" for value in _enum(choice)["enum"]]
    if numbers:
        # The API server accepts minimum and pattern with int-or-string: each applies only to its own type.
        limits: Schema = {key: numbers[0][key] for key in ("minimum", "maximum") if key in numbers[0]}
        return {INT_OR_STRING: True, "pattern": f"^({'|'.join(words)})$", **limits}
    return {ANY_SCALAR: True, "enum": [*words, True, False]}


class _WithDocs(GenerateJsonSchema):
    """A JSON schema whose properties are described by the docstrings of their attributes.

    Pydantic's `use_attribute_docstrings` would parse every model's source whenever it is imported, by any command.
    """

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Return the schema of a model."""
        document = super().model_schema(schema)
        model: type[BaseModel] = schema["cls"]
        for name, field in model.model_fields.items():
            described = document["properties"].get(field.alias or name)
            if described is not None and name in (docs := _docs(model)):
                described.setdefault("description", docs[name])
        return document


@cache
def _docs(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings of a model's attributes, inherited ones included."""
    docs: dict[str, str] = {}
    for one in reversed(model.__mro__):
        if one.__module__.startswith("ptapi."):
            docs |= _of_module(one.__module__).get(one.__name__, {})
    return docs


@cache
def _of_module(name: str) -> dict[str, dict[str, str]]:
    """Return the docstrings of attributes by class and name."""
    tree = ast.parse(inspect.getsource(sys.modules[name]))
    return {node.name: dict(_of_class(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _of_class(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield an attribute's name, and the text that follows it."""
    for attribute, text in zip(node.body, node.body[1:], strict=False):
        value: Any = text.value if isinstance(text, ast.Expr) else None
        is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
        if is_text and isinstance(attribute, ast.AnnAssign) and isinstance(attribute.target, ast.Name):
            yield attribute.target.id, inspect.cleandoc(value.value)
