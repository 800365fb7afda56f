"""Findings from the errors of a parser, in the words of the schema instead of the parser's.

Pydantic decides what is wrong. A finding names the path as the user writes it, the value, and what the schema accepts
there. The one idea: all errors at a path become one finding, made from the path alone.
"""

import re
from typing import Any

from pydantic import BaseModel, ValidationError

from ptapi.accelerators import TYPE_FIELD, near_name
from ptapi.errors import Finding
from ptapi.spec.openapi_schema import Schema, child, structural
from ptapi.text.messages import accepted, quoted, shown
from ptapi.validation import suggestions

Path = tuple[str | int, ...]
MISSING = "(missing)"
HIDDEN = "(not shown)"
_SECRET = re.compile(r"(?i)(token|secret|password|api_?key|access_?key)$")
_PLAIN_KEY = re.compile(r"[-\w./=]+")


def dotted(path: Path) -> str:
    """Return `("spec", "rewards", 0, "weight")` as `spec.rewards[0].weight`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{_key(step)}" for step in path)
    return text.removeprefix(".") or "job"


def _key(step: str) -> str:
    return step if _PLAIN_KEY.fullmatch(step) else quoted(step)


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
    hint = "" if node is None else suggestions.for_value(str(path[-1]) if path else "", node, value)
    if _is_secret(path):
        return Finding(dotted(path), HIDDEN, _accepted(schema, path), hint and "in quotes it is text")
    if dotted(path) == TYPE_FIELD and isinstance(value, str) and (nearest := near_name(value)):
        hint = f"did you mean {nearest}?"
    return Finding(dotted(path), shown(value), _accepted(schema, path), hint)


def _unknown(schema: Schema, path: Path, value: Any) -> Finding:
    parent, name = path[:-1], str(path[-1])
    siblings = (_schema_at(schema, parent) or {}).get("properties", {})
    fields = f"accepted: {', '.join(siblings)}" if siblings else "accepted: nothing, the map is empty"
    where = dotted(parent) if parent else ""
    meant = suggestions.for_name(schema, siblings, where, name, value)
    hint = f"did you mean {meant}?" if meant else ""
    text = HIDDEN if _is_secret(path) else shown(value)
    return Finding(dotted(path), text, f"{dotted(parent)} has no field {_key(name)}; {fields}", hint)


def _is_secret(path: Path) -> bool:
    """Return True where a value may be a secret, whatever is wrong with it: a variable's, or one whose key says so."""
    last = str(path[-1]) if path else ""
    return ("env" in path and last != "name") or bool(_SECRET.search(last))
