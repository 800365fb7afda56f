"""A tool: what the model is told of it, and a function of arguments and row, called once its arguments are checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


class ToolError(Exception):
    """The tool cannot answer; the model reads the message."""


class Tool(NamedTuple):
    """schema: as chat templates want it (`{"type": "function", "function": …}`)."""

    schema: Mapping[str, Any]
    call: Callable[[Mapping[str, Any], Mapping[str, Any]], str]


def schema(
    name: str, description: str, properties: Mapping[str, Any], required: list[str] | None = None
) -> dict[str, Any]:
    """A function's schema in OpenAI's form, which chat templates take."""
    parameters = {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties) if required is None else required,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def wrong_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """What is wrong with a call's arguments; empty for nothing."""
    parameters = schema["function"]["parameters"]
    known: Mapping[str, Any] = parameters["properties"]
    for name in parameters.get("required", ()):
        if name not in arguments:
            return f"missing argument {name!r}; accepted: {', '.join(known)}"
    for name, value in arguments.items():
        if name not in known:
            return f"no argument {name!r}; accepted: {', '.join(known)}"
        wanted = known[name].get("type", "")
        is_wrong_bool = isinstance(value, bool) and wanted != "boolean"
        if wanted in _TYPES and (is_wrong_bool or not isinstance(value, _TYPES[wanted])):
            return f"argument {name!r} is a {type(value).__name__}; accepted: {wanted}"
    return ""
