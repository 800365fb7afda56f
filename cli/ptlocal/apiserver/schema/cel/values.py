"""Values that Python has no type for, names of types, and regular expressions in RE2's meaning."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from ptlocal.apiserver.schema.cel.syntax import CelError


@dataclass(frozen=True)
class Optional:
    """What `a.?b` gives."""

    is_set: bool
    value: Any = None


class TypeName(str):
    """What `type(x)` gives: equal to the name of a type."""


def type_of(value: Any) -> str:
    for kind, name in (
        (bool, "bool"),
        (int, "int"),
        (float, "double"),
        (TypeName, "type"),
        (str, "string"),
        (bytes, "bytes"),
        (list, "list"),
        (dict, "map"),
        (datetime, "google.protobuf.Timestamp"),
        (timedelta, "google.protobuf.Duration"),
        (Optional, "optional_type"),
    ):
        if isinstance(value, kind):
            return name
    return "null_type" if value is None else type(value).__name__


@lru_cache(maxsize=1024)
def regex(pattern: str) -> re.Pattern[str]:
    """RE2's `$` matches at the very end only, and its classes are ASCII."""
    try:
        return re.compile(_with_strict_end(pattern), re.ASCII)
    except re.error as error:
        raise CelError(f"error parsing regexp: {error}") from None


def _with_strict_end(pattern: str) -> str:
    """`$` and `\\z` as Python's `\\Z`, outside character classes."""
    made, position, in_class = [], 0, False
    while position < len(pattern):
        char = pattern[position]
        if char == "\\" and position + 1 < len(pattern):
            pair = pattern[position : position + 2]
            made.append(r"\Z" if pair == r"\z" and not in_class else pair)
            position += 2
            continue
        if char == "[" and not in_class:
            in_class = True
            if pattern[position + 1 : position + 2] == "]":
                made.append("[")
                position += 1
                char = "]"
        elif char == "]":
            in_class = False
        made.append(r"\Z" if char == "$" and not in_class else char)
        position += 1
    return "".join(made)
