"""The values and operators of CEL on Python values, and the table of functions that rules may call.

int, float, bool, str, bytes, list, dict, None, datetime and timedelta stand for CEL's types. A wrong type or a missing
key raises CelError with the words of the reference implementation. The table holds the standard functions and those
Kubernetes adds that definitions in this field use: strings, lists, regex, sets, quantities and a few of URL and IP.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from ptlocal.apiserver.schema.cel import extensions, strings
from ptlocal.apiserver.schema.cel.syntax import CelError
from ptlocal.apiserver.schema.cel.values import Optional, TypeName, regex, type_of

__all__ = ["FUNCTIONS", "METHODS", "TypeName", "call", "has", "index", "select", "select_optional", "unescaped"]

Function = Callable[..., Any]
_ESCAPED = {"__underscores__": "__", "__dot__": ".", "__dash__": "-", "__slash__": "/"}
_KEYWORD = re.compile(
    r"__(true|false|null|in|as|break|const|continue|else|for|function|if|import|let|loop|package"
    r"|namespace|return|var|void|while)__"
)


def unescaped(name: str) -> str:
    """The field that an escaped identifier stands for: `__namespace__` is `namespace`, `a__dash__b` is `a-b`."""
    if "__" not in name:
        return name
    if match := _KEYWORD.fullmatch(name):
        return match[1]
    for escaped, plain in _ESCAPED.items():
        name = name.replace(escaped, plain)
    return name


def call(function: Function, name: str, *args: Any) -> Any:
    try:
        return function(*args)
    except CelError:
        raise
    except (TypeError, AttributeError, ValueError, OverflowError, ArithmeticError, LookupError, re.error) as error:
        kinds = ", ".join(type_of(arg) for arg in args)
        if isinstance(error, TypeError | AttributeError):
            raise CelError(f"no such overload: {name}({kinds})") from None
        raise CelError(f"{name}: {error}") from None


def select(of: Any, key: str) -> Any:
    if isinstance(of, Optional):
        return select_optional(of, key)
    if not isinstance(of, dict):
        raise CelError(f"unsupported type: {type_of(of)} has no fields")
    if key not in of:
        raise CelError(f"no such key: {key}")
    return of[key]


def has(of: Any, key: str) -> bool:
    if isinstance(of, Optional):
        return of.is_set and has(of.value, key)
    if not isinstance(of, dict):
        raise CelError(f"unsupported type: {type_of(of)} has no fields")
    return key in of


def select_optional(of: Any, key: Any) -> Optional:
    if isinstance(of, Optional):
        return select_optional(of.value, key) if of.is_set else of
    if isinstance(of, dict):
        return Optional(True, of[key]) if key in of else Optional(False)
    if isinstance(of, list) and isinstance(key, int):
        return Optional(True, of[key]) if 0 <= key < len(of) else Optional(False)
    raise CelError(f"unsupported type: {type_of(of)} has no fields")


def index(of: Any, key: Any) -> Any:
    if isinstance(of, dict):
        if key not in of:
            raise CelError(f"no such key: {key}")
        return of[key]
    if not isinstance(of, list) or not isinstance(key, int) or isinstance(key, bool):
        raise CelError(f"no such overload: {type_of(of)}[{type_of(key)}]")
    if not 0 <= key < len(of):
        raise CelError(f"index out of bounds: {key}")
    return of[key]


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, bool) is not isinstance(right, bool):
        return False
    return bool(left == right)


def _whole(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise CelError("integer overflow")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return value


def _arithmetic(function: Function) -> Function:
    def run(left: Any, right: Any) -> Any:
        if isinstance(_number(left), float) is not isinstance(_number(right), float):
            raise TypeError
        result = function(left, right)
        return _whole(result) if isinstance(result, int) else result

    return run


def _add(left: Any, right: Any) -> Any:
    joins = isinstance(left, str | bytes | list) and type(left) is type(right)
    if joins or isinstance(left, datetime | timedelta) or isinstance(right, datetime):
        return left + right
    return _plus(left, right)


def _subtract(left: Any, right: Any) -> Any:
    return left - right if isinstance(left, datetime | timedelta) else _minus(left, right)


def _divide(left: Any, right: Any) -> Any:
    if isinstance(left, float):
        return left / right if right else math.copysign(math.inf, left)
    if right == 0:
        raise CelError("division by zero")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: Any, right: Any) -> Any:
    if right == 0:
        raise CelError("modulus by zero")
    return int(math.fmod(left, right)) if abs(left) < 2**52 else left - right * _divide(left, right)


_plus = _arithmetic(lambda left, right: left + right)
_minus = _arithmetic(lambda left, right: left - right)


def _ordered(function: Function) -> Function:
    def run(left: Any, right: Any) -> bool:
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (left, right))
        if (not numbers and type(left) is not type(right)) or isinstance(left, dict | list | None):
            raise TypeError
        return bool(function(left, right))

    return run


def _in(item: Any, container: Any) -> bool:
    if isinstance(container, dict):
        return item in container
    if isinstance(container, list):
        return any(equal(item, other) for other in container)
    raise TypeError


def _not(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return not value


def _size(value: Any) -> int:
    if isinstance(value, str | bytes | list | dict):
        return len(value)
    raise TypeError


def _int(value: Any) -> int:
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, str) and not re.fullmatch(r"[+-]?\d+", value):
        raise CelError(f"type conversion error from '{value}' to 'int'")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    return _whole(int(value))


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "True", "TRUE", "t", "1"):
        return True
    if value in ("false", "False", "FALSE", "f", "0"):
        return False
    raise CelError(f"type conversion error from '{value}' to 'bool'")


def _timestamp(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, int):
        return datetime.fromtimestamp(value, UTC)
    parsed = datetime.fromisoformat(value)
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def _type(value: Any) -> TypeName:
    return TypeName(type_of(value))


FUNCTIONS: dict[str, Function] = {
    "_==_": equal,
    "_!=_": lambda left, right: not equal(left, right),
    "_<_": _ordered(lambda left, right: left < right),
    "_<=_": _ordered(lambda left, right: left <= right),
    "_>_": _ordered(lambda left, right: left > right),
    "_>=_": _ordered(lambda left, right: left >= right),
    "_in_": _in,
    "_+_": _add,
    "_-_": _subtract,
    "_*_": _arithmetic(lambda left, right: left * right),
    "_/_": _arithmetic(_divide),
    "_%_": _arithmetic(_remainder),
    "!_": _not,
    "-_": lambda value: -_number(value),
    "size": _size,
    "int": _int,
    "uint": _int,
    "double": lambda value: float(value if isinstance(value, str) else _number(value)),
    "string": strings.to_text,
    "bool": _bool,
    "bytes": lambda value: value if isinstance(value, bytes) else value.encode(),
    "type": _type,
    "dyn": lambda value: value,
    "duration": extensions.to_duration,
    "timestamp": _timestamp,
    "matches": lambda text, pattern: regex(pattern).search(text) is not None,
    **extensions.FUNCTIONS,
}

METHODS: dict[str, Function] = {
    "size": _size,
    "matches": lambda text, pattern: regex(pattern).search(text) is not None,
    **strings.METHODS,
    **extensions.METHODS,
}
