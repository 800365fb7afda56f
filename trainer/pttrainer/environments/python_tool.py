"""A user's function as a tool: the model's description comes from its name, annotations and docstring.

def weather(city: str, days: int = 1) -> str:
        '''The weather of a city.'''

A last argument called `row` receives the data's row and is not shown to the model.
"""

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pttrainer.environments.tool import schema
from pttrainer.sandbox import user_code
from pttrainer.sandbox.handlers import Handler, Source
from pttrainer.sandbox.user_code import RewardCodeError

ROW = "row"
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}


def schema_of(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """Return the schema of a function; raise RewardCodeError if an argument's type cannot be determined."""
    properties, required = {}, []
    try:
        hints = typing.get_type_hints(function)
    except Exception as error:
        raise RewardCodeError(f"{name}: annotations cannot be read: {error}") from error
    for argument, parameter in inspect.signature(function).parameters.items():
        if argument == ROW:
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise RewardCodeError(f"{name}: argument {argument!r}: accepted: named arguments, without * and **")
        properties[argument] = {"type": _type(name, argument, hints.get(argument, str))}
        if parameter.default is parameter.empty:
            required.append(argument)
    return schema(name, inspect.getdoc(function) or "", properties, required)


def call(function: Callable[..., Any], arguments: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Return the tool's result; anything but text is formatted with `str`."""
    wants_row = ROW in inspect.signature(function).parameters
    result = function(**arguments, **({ROW: row} if wants_row else {}))
    return result if isinstance(result, str) else str(result)


def handler(source: Source) -> Handler:
    """Return the sandbox's handler of a user's tool."""
    function = user_code.load(source["path"], source["function"])
    return Handler(
        lambda request: call(function, *request), details={"schema": schema_of(source["function"], function)}
    )


def _type(name: str, argument: str, hint: Any) -> str:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):  # `int | None`, `Optional[int]`: what is not None
        hint = next((part for part in typing.get_args(hint) if part is not type(None)), str)
    origin = typing.get_origin(hint) or hint
    if origin not in _TYPES:
        accepted = ", ".join(kind.__name__ for kind in _TYPES)
        raise RewardCodeError(f"{name}: argument {argument!r}: type {hint}; accepted: {accepted}")
    return _TYPES[origin]
