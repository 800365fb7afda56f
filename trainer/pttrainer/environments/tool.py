"""A tool: its schema for the model, and a function of arguments and row, called once the arguments are checked."""

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
    """schema: in the form of chat templates (`{"type": "function", "function": …}`)."""

    schema: Mapping[str, Any]
    call: Callable[[Mapping[str, Any], Mapping[str, Any]], str]


def schema(
    name: str, description: str, properties: Mapping[str, Any], required: list[str] | None = None
) -> dict[str, Any]:
    """Return a function's schema in OpenAI's form, which chat templates take."""
    parameters = {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties) if required is None else required,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def wrong_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """Return what is wrong with a call's arguments, or an empty string."""
    parameters = schema["function"]["parameters"]
    accepted: Mapping[str, Any] = parameters["properties"]
    for name in parameters.get("required", ()):
        if name not in arguments:
            return f"missing argument {name!r}; accepted: {', '.join(accepted)}"
    for name, value in arguments.items():
        if name not in accepted:
            return f"no argument {name!r}; accepted: {', '.join(accepted)}"
        described = accepted[name]
        type_name = described.get("type", "") if isinstance(described, Mapping) else ""
        if not isinstance(type_name, str):
            continue  # a server's schema may name several types
        is_wrong_bool = isinstance(value, bool) and type_name != "boolean"
        if type_name in _TYPES and (is_wrong_bool or not isinstance(value, _TYPES[type_name])):
            return f"argument {name!r} is a {type(value).__name__}; accepted: {type_name}"
    return ""
