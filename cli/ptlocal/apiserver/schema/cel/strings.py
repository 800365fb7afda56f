"""String functions of CEL: the standard ones, the strings extension and `format`."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from ptlocal.apiserver.schema.cel.syntax import CelError
from ptlocal.apiserver.schema.cel.values import TypeName, regex, type_of

_VERB = re.compile(r"%(?:%|(?:\.(\d+))?([sdfexXob]))")


def to_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e21 else repr(value)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}s"
    raise TypeError


def format_text(template: str, args: Any) -> str:
    if not isinstance(args, list):
        raise TypeError
    left = list(args)

    def fill(match: re.Match[str]) -> str:
        if match.group() == "%%":
            return "%"
        if not left:
            raise CelError(f"index {len(args)} out of range")
        return _formatted(match[2], match[1], left.pop(0))

    return _VERB.sub(fill, template)


def _formatted(verb: str, precision: str | None, value: Any) -> str:
    if verb == "s":
        return _shown(value)
    if verb in "xXob" and isinstance(value, bool):
        return str(int(value))
    if verb in "xX" and isinstance(value, str | bytes):
        digits = (value.encode() if isinstance(value, str) else value).hex()
        return digits.upper() if verb == "X" else digits
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CelError(f"could not format argument: {type_of(value)} is not a number")
    if verb in "dxXob":
        if not isinstance(value, int):
            raise CelError("could not format argument: an integer is needed")
        return format(value, verb)
    return format(float(value), f".{precision or 6}{verb}")


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_shown(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_shown(key)}: {_shown(value[key])}" for key in sorted(value, key=str)) + "}"
    if value is None:
        return "null"
    if isinstance(value, TypeName):
        return str(value)
    return to_text(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _split(text: str, separator: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    parts = text.split(_text(separator)) if separator else list(_text(text))
    if 0 < limit < len(parts):
        parts = [*parts[: limit - 1], separator.join(parts[limit - 1 :])]
    return parts


def _substring(text: str, start: int, end: int | None = None) -> str:
    end = len(text) if end is None else end
    if not 0 <= start <= end <= len(text):
        raise CelError(f"index out of range: {start}, {end}")
    return text[start:end]


def _char_at(text: str, position: int) -> str:
    if not 0 <= position <= len(_text(text)):
        raise CelError(f"index out of range: {position}")
    return text[position : position + 1]


def _replace(text: str, old: str, new: str, limit: int = -1) -> str:
    return text.replace(old, new, limit)


def _join(items: list[str], separator: str = "") -> str:
    return _text(separator).join(map(_text, items))


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    found = [match.group() for match in regex(pattern).finditer(text)]
    return found if limit < 0 else found[:limit]


def _find(text: str, pattern: str) -> str:
    match = regex(pattern).search(text)
    return match.group() if match else ""


def _ascii_only(text: str, change: Callable[[str], str]) -> str:
    return "".join(change(char) if char.isascii() else char for char in _text(text))


METHODS: dict[str, Callable[..., Any]] = {
    "startsWith": lambda text, prefix: _text(text).startswith(_text(prefix)),
    "endsWith": lambda text, suffix: _text(text).endswith(_text(suffix)),
    "contains": lambda text, part: _text(part) in _text(text),
    "charAt": _char_at,
    "lowerAscii": lambda text: _ascii_only(text, str.lower),
    "upperAscii": lambda text: _ascii_only(text, str.upper),
    "replace": _replace,
    "split": _split,
    "substring": _substring,
    "trim": lambda text: _text(text).strip(),
    "reverse": lambda text: _text(text)[::-1],
    "join": _join,
    "format": format_text,
    "find": _find,
    "findAll": _find_all,
}
