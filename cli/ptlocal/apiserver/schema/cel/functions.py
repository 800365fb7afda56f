"""What Kubernetes adds to CEL and Google's evaluator lacks: functions of lists, quantities, regular expressions, URLs.

Left out: the parts of URLs, addresses and versions, and arithmetic of quantities. A quantity is a map with its decimal
text, because an extension cannot give CEL a type of its own. The argument of `indexOf` has a type in each overload:
an optional that reaches Python ends the process (cel-expr-python 0.1.3), and typed overloads keep it from there.
"""

import ipaddress
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from cel_expr_python import cel

from ptapi import quantity
from ptlocal.apiserver.schema.validation import compiled

_LIST = cel.Type.List(cel.Type.DYN)
_QUANTITY = cel.Type.Map(cel.Type.STRING, cel.Type.STRING)
_BOOL, _INT, _STRING = cel.Type.BOOL, cel.Type.INT, cel.Type.STRING
_ITEMS = (_STRING, _INT, cel.Type.DOUBLE, _BOOL)


def extension() -> Any:
    """Return Kubernetes' own functions as an extension of the evaluator."""
    return cel.CelExtension("kubernetes", [*_of_texts(), *_of_lists(), *_of_quantities()])


def _of_texts() -> list[Any]:
    return [
        _function("isURL", (_BOOL, [_STRING], _is_url)),
        _function("isIP", (_BOOL, [_STRING], _is_ip)),
        _method("find", (_STRING, [_STRING, _STRING], _find)),
        _method("findAll", (_LIST, [_STRING, _STRING], _find_all), (_LIST, [_STRING, _STRING, _INT], _find_all)),
    ]


def _of_lists() -> list[Any]:
    return [
        _method("isSorted", (_BOOL, [_LIST], lambda items: all(a <= b for a, b in pairwise(items)))),
        _method("sum", (cel.Type.DYN, [_LIST], lambda items: sum(items))),
        _method("min", (cel.Type.DYN, [_LIST], _extreme("min", min))),
        _method("max", (cel.Type.DYN, [_LIST], _extreme("max", max))),
        _method("indexOf", *((_INT, [_LIST, item], _index_of) for item in _ITEMS)),
        _method("lastIndexOf", *((_INT, [_LIST, item], _last_index_of) for item in _ITEMS)),
    ]


def _of_quantities() -> list[Any]:
    both = [_QUANTITY, _QUANTITY]
    return [
        _function("isQuantity", (_BOOL, [_STRING], quantity.is_quantity)),
        _function("quantity", (_QUANTITY, [_STRING], _quantity)),
        _method("isGreaterThan", (_BOOL, both, lambda left, right: _compare(left, right) > 0)),
        _method("isLessThan", (_BOOL, both, lambda left, right: _compare(left, right) < 0)),
        _method("compareTo", (_INT, both, _compare)),
    ]


_Signature = tuple[Any, list[Any], Callable[..., Any]]


def _function(name: str, *signatures: _Signature, is_member: bool = False) -> Any:
    return cel.FunctionDecl(
        name,
        [
            cel.Overload(f"{name}_{index}", returned, parameters, is_member=is_member, impl=run)
            for index, (returned, parameters, run) in enumerate(signatures)
        ],
    )


def _method(name: str, *signatures: _Signature) -> Any:
    return _function(name, *signatures, is_member=True)


def _is_url(text: str) -> bool:
    parts = urlsplit(text)
    return bool(parts.scheme) and (bool(parts.netloc) or parts.path.startswith("/"))


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _find(text: str, pattern: str) -> str:
    match = compiled(pattern).search(text)
    return match.group() if match else ""


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    matches = [match.group() for match in compiled(pattern).finditer(text)]
    return matches if limit < 0 else matches[:limit]


def _extreme(name: str, pick: Callable[[Any], Any]) -> Callable[[list[Any]], Any]:
    def run(items: list[Any]) -> Any:
        if not items:
            raise ValueError(f"{name} called on empty list")
        return pick(items)

    return run


def _index_of(items: list[Any], item: Any) -> int:
    return items.index(item) if item in items else -1


def _last_index_of(items: list[Any], item: Any) -> int:
    return len(items) - 1 - items[::-1].index(item) if item in items else -1


def _quantity(text: str) -> dict[str, str]:
    if not quantity.is_quantity(text):
        raise ValueError(quantity.RULE)
    return {"quantity": str(quantity.parse_quantity(text).normalize())}


def _compare(left: dict[str, str], right: dict[str, str]) -> int:
    return int(Decimal(left["quantity"]).compare(Decimal(right["quantity"])))
