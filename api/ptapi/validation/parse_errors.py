"""Findings from the errors of a parser, in the words of the schema instead of the parser's.

Pydantic decides what is wrong. A finding names the path as the user writes it, the value, and what the schema accepts
there. The one idea: all errors at a path become one finding, made from the path alone.
"""

import difflib
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from ptapi.accelerators import TYPE_FIELD, near_name
from ptapi.errors import Finding
from ptapi.spec.openapi_schema import INT_OR_STRING, Schema, child, structural
from ptapi.text.messages import accepted, shown

Path = tuple[str | int, ...]
MISSING = "(missing)"


def dotted(path: Path) -> str:
    """Return `("spec", "rewards", 0, "weight")` as `spec.rewards[0].weight`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".") or "job"


def translate(model: type[BaseModel], error: ValidationError, document: Any) -> list[Finding]:
    """Return one finding per wrong path, in the order of the model's fields."""
    schema = structural(model)
    findings: dict[Path, Finding] = {}
    for entry in error.errors(include_url=False, include_context=False):
        path = _document_path(schema, entry["loc"])
        if entry["type"] == "extra_forbidden":
            findings.setdefault(path, _unknown(schema, path, entry["input"]))
        elif entry["type"] == "missing":
            findings.setdefault(path, Finding(dotted(path), MISSING, f"is required: {_accepted(schema, path)}"))
        else:
            findings.setdefault(path, _wrong(schema, path, _value_at(document, path)))
    return list(findings.values())


def _document_path(schema: Schema, location: tuple[str | int, ...]) -> Path:
    """Return Pydantic's location without the names of union members, which are not part of the document."""
    path: list[str | int] = []
    node: Schema | None = schema
    for step in location:
        if node is not None and not ("properties" in node or "items" in node or "additionalProperties" in node):
            if node.get("type") == "object":
                path.append(step)
            break
        path.append(step)
        node = child(node, step) if node is not None else None
    return tuple(path)


def _schema_at(schema: Schema, path: Path) -> Schema | None:
    node: Schema | None = schema
    for step in path:
        node = child(node, step) if node is not None else None
    return node


def _value_at(document: Any, path: Path) -> Any:
    for step in path:
        document = document[step]
    return document


def _accepted(schema: Schema, path: Path) -> str:
    node = _schema_at(schema, path)
    return accepted(node) if node is not None else "text"


def _wrong(schema: Schema, path: Path, value: Any) -> Finding:
    node = _schema_at(schema, path)
    takes_text = node is not None and "enum" not in node and _takes_text(node, str(value))
    # An environment variable's value may be a secret, whatever is wrong with it.
    text = "(not shown)" if "env" in path and path[-1] == "value" else shown(value)
    hint = ""
    if takes_text and isinstance(value, bool | int | float):
        hint = f'in quotes it is text: "{text}"'
    elif node is not None and isinstance(value, str):
        close = difflib.get_close_matches(value, [str(choice) for choice in node.get("enum", [])], n=1)
        hint = f"did you mean {close[0]}?" if close else ""
    if dotted(path) == TYPE_FIELD and isinstance(value, str) and (nearest := near_name(value)):
        hint = f"did you mean {nearest}?"
    return Finding(dotted(path), text, _accepted(schema, path), hint)


def _takes_text(node: Schema, text: str) -> bool:
    """Return True if the field takes this text, in quotes."""
    return node.get("type") == "string" or (INT_OR_STRING in node and bool(re.search(node["pattern"], text)))


def _unknown(schema: Schema, path: Path, value: Any) -> Finding:
    parent, name = path[:-1], str(path[-1])
    siblings = list((_schema_at(schema, parent) or {}).get("properties", {}))
    fields = f"accepted: {', '.join(siblings)}" if siblings else "accepted: nothing, the map is empty"
    close = difflib.get_close_matches(_camel(name), siblings, n=1, cutoff=0.6)
    elsewhere = [candidate for candidate in _paths(schema, ()) if candidate[-1] == _camel(name)]
    if close:
        hint = f"did you mean {dotted((*parent, close[0]))}?"
    elif elsewhere:
        hint = f"did you mean {dotted(min(elsewhere, key=len))}?"
    else:
        hint = ""
    return Finding(dotted(path), shown(value), f"{dotted(parent)} has no field {name}; {fields}", hint)


def _paths(schema: Schema, path: Path) -> Iterator[Path]:
    for name, below in schema.get("properties", {}).items():
        yield (*path, name)
        yield from _paths(below, (*path, name))


def _camel(name: str) -> str:
    first, *rest = name.replace("-", "_").split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)
