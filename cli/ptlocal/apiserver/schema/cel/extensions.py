"""What Kubernetes adds to CEL, as far as definitions in this field use it: lists, sets, quantities, times, optionals,
and whether a text is a URL or an IP address. Left out: the parts of URLs, addresses and versions.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from ptkube import quantity
from ptlocal.apiserver.schema.cel.syntax import CelError
from ptlocal.apiserver.schema.cel.values import Optional

_DURATION_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def to_duration(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        return value
    text = value.lstrip("+-")
    if text != "0" and (not text or _DURATION_PART.sub("", text)):
        raise CelError(f"invalid duration '{value}'")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(text))
    return timedelta(seconds=-seconds if value.startswith("-") else seconds)


def _index_of(container: Any, item: Any, start: int = 0) -> int:
    if isinstance(container, str):
        return container.find(item, start)
    return container.index(item) if item in container else -1


def _last_index_of(container: Any, item: Any) -> int:
    if isinstance(container, str):
        return container.rfind(item)
    return len(container) - 1 - container[::-1].index(item) if item in container else -1


def _is_sorted(items: list[Any]) -> bool:
    return all(a <= b for a, b in pairwise(items))


def _extreme(pick: Callable[[Any], Any]) -> Callable[[list[Any]], Any]:
    def run(items: list[Any]) -> Any:
        if not items:
            raise CelError("min/max called on empty list")
        return pick(items)

    return run


def _is_url(text: str) -> bool:
    parts = urlsplit(text)
    return bool(parts.scheme) and (bool(parts.netloc) or parts.path.startswith("/"))


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _quantity(text: Any) -> Decimal:
    if isinstance(text, Decimal):
        return text
    if not quantity.is_quantity(text):
        raise CelError(quantity.RULE)
    return quantity.parse_quantity(text)


def _compare(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def _value(optional: Optional) -> Any:
    if not optional.is_set:
        raise CelError("optional.none() dereference")
    return optional.value


def _seconds(value: Any) -> int:
    return int(value.total_seconds()) if isinstance(value, timedelta) else int(value.second)


def _minutes(value: Any) -> int:
    return int(value.total_seconds() // 60) if isinstance(value, timedelta) else int(value.minute)


def _hours(value: Any) -> int:
    return int(value.total_seconds() // 3600) if isinstance(value, timedelta) else int(value.hour)


def _year(value: datetime) -> int:
    return value.year


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "isURL": _is_url,
    "isIP": _is_ip,
    "isQuantity": quantity.is_quantity,
    "quantity": _quantity,
    "math.greatest": lambda *values: max(*values) if len(values) > 1 else max(values[0]),
    "math.least": lambda *values: min(*values) if len(values) > 1 else min(values[0]),
    "sets.contains": lambda items, wanted: all(item in items for item in wanted),
    "sets.intersects": lambda items, others: any(item in others for item in items),
    "sets.equivalent": lambda a, b: all(item in b for item in a) and all(item in a for item in b),
    "optional.of": lambda value: Optional(True, value),
    "optional.none": lambda: Optional(False),
}

METHODS: dict[str, Callable[..., Any]] = {
    "indexOf": _index_of,
    "lastIndexOf": _last_index_of,
    "isSorted": _is_sorted,
    "sum": lambda items: sum(items),
    "min": _extreme(min),
    "max": _extreme(max),
    "isGreaterThan": lambda left, right: left > right,
    "isLessThan": lambda left, right: left < right,
    "compareTo": _compare,
    "orValue": lambda optional, other: optional.value if optional.is_set else other,
    "hasValue": lambda optional: optional.is_set,
    "value": _value,
    "getSeconds": _seconds,
    "getMinutes": _minutes,
    "getHours": _hours,
    "getFullYear": _year,
}
