"""Predicates over one object of a job: each is written once and holds as CEL and as Python.

CEL's `self` is the object that `holds` gets; fields are dotted camelCase paths below it. A comparison means nothing
below an unset parent, so the predicate that rules this out stands to its left.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip

_RESERVED = (
    "as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop",
    "namespace", "null", "package", "return", "true", "var", "void", "while",
)  # fmt: skip
"""Names that CEL keeps for itself."""


@dataclass(frozen=True)
class Predicate:
    """A predicate in both languages.

    cel: true over the object after defaulting; empty where CEL cannot say it, and then Python alone checks.
    holds: the same over the model. operator: the outermost of the CEL, which decides about parentheses.
    """

    cel: str
    holds: Callable[[Any], bool]
    operator: str = ""

    def __or__(self, other: Predicate) -> Predicate:
        """Return the predicate that either of two holds."""
        return Predicate(_joined("||", self, other), lambda node: self.holds(node) or other.holds(node), "||")

    def __and__(self, other: Predicate) -> Predicate:
        """Return the predicate that both hold."""
        return Predicate(_joined("&&", self, other), lambda node: self.holds(node) and other.holds(node), "&&")

    def __xor__(self, other: Predicate) -> Predicate:
        """Return the predicate that one of two holds, and not both."""
        return Predicate(_joined("!=", self, other), lambda node: self.holds(node) != other.holds(node), "!=")

    def iff(self, other: Predicate) -> Predicate:
        """Return the predicate that both hold, or neither."""
        return Predicate(_joined("==", self, other), lambda node: self.holds(node) == other.holds(node), "==")

    def __invert__(self) -> Predicate:
        """Return the predicate that this one does not hold."""
        cel = f"({self.cel})" if self.operator else self.cel
        return Predicate(self.cel and f"!{cel}", lambda node: not self.holds(node))


def own(field: str) -> str:
    """Return a dotted field of `self` in CEL: Kubernetes writes names that CEL reserves as `__function__`."""
    names = (f"__{name}__" if name in _RESERVED else name for name in field.split("."))
    return ".".join(["self", *names])


def has(field: str) -> Predicate:
    """Require a value in a field; of lists ask `filled`."""
    return Predicate(f"has({own(field)})", lambda node: at(node, field) is not None)


def unset(field: str) -> Predicate:
    """Require that a field is absent."""
    return ~has(field)


def filled(field: str) -> Predicate:
    """Require at least one entry in a list."""
    return has(field) & Predicate(f"{own(field)}.size() > 0", lambda node: bool(at(node, field)))


def empty(field: str) -> Predicate:
    """Require that a list, or a text, is absent or empty."""
    return Predicate(f"!has({own(field)}) || {own(field)}.size() == 0", lambda node: not at(node, field), "||")


def is_true(field: str) -> Predicate:
    """Require true in a boolean field."""
    return Predicate(f"{own(field)}", lambda node: at(node, field) is True)


def equals(field: str, value: str | float) -> Predicate:
    """Require one value."""
    return Predicate(f"{own(field)} == {value!r}", lambda node: at(node, field) == value, "==")


def differs(field: str, value: str | float) -> Predicate:
    """Require any value but one."""
    return Predicate(f"{own(field)} != {value!r}", lambda node: at(node, field) != value, "!=")


def one_of(field: str, *values: str) -> Predicate:
    """Require one of several values."""
    return Predicate(f"{own(field)} in {list(values)}", lambda node: at(node, field) in values, "in")


def compare(field: str, sign: str, other: str | float) -> Predicate:
    """Compare a number with a number, or with another field."""
    return Predicate(
        f"{own(field)} {sign} {_term(other)}",
        lambda node: _COMPARISONS[sign](at(node, field), _value(node, other)),
        sign,
    )


def is_multiple(field: str, divisor: str | int) -> Predicate:
    """Require a multiple of a number, or of another field."""
    return Predicate(
        f"{own(field)} % {_term(divisor)} == 0", lambda node: at(node, field) % _value(node, divisor) == 0, "=="
    )


def each_once(field: str) -> Predicate:
    """Require different entries in a list; Python alone checks, because CEL's cost would be quadratic."""
    return Predicate("", lambda node: _all_differ(at(node, field) or []))


def _all_differ(values: list[Any]) -> bool:
    return all(value not in values[:index] for index, value in enumerate(values))


def starts_with(field: str, prefix: str) -> Predicate:
    """Require text with a prefix."""
    return Predicate(f"{own(field)}.startsWith('{prefix}')", lambda node: at(node, field).startswith(prefix))


def matches(field: str, pattern: str) -> Predicate:
    """Require text in which the pattern, in the syntax that RE2 and Python share, is found."""
    return Predicate(f"{own(field)}.matches('{pattern}')", lambda node: re.search(pattern, at(node, field)) is not None)


def count_set(fields: tuple[str, ...], sign: str, number: int) -> Predicate:
    """Compare the number of fields that have a value."""
    terms = ", ".join(f"has({own(field)})" for field in fields)
    return Predicate(
        f"[{terms}].filter(x, x).size() {sign} {number}",
        lambda node: _COMPARISONS[sign](sum(at(node, field) is not None for field in fields), number),
        sign,
    )


def at(node: Any, field: str) -> Any:
    """Return the value of a dotted camelCase field below a model; None where a parent is unset."""
    for name in field.split(".") if field else []:
        node = child(node, name) if node is not None else None
    return node


def child(node: BaseModel, alias: str) -> Any:
    """Return the value of a camelCase field."""
    return getattr(node, _names(type(node))[alias])


@cache
def _names(model: type[BaseModel]) -> dict[str, str]:
    # Field names by alias, kept: the operator checks a job in every reconcile, with a hundred rules.
    return {field.alias or name: name for name, field in model.model_fields.items()}


def _joined(sign: str, *predicates: Predicate) -> str:
    if not all(predicate.cel for predicate in predicates):
        return ""
    # Comparisons bind closer than || and &&, so those two alone need parentheses, in each other.
    mixed = {"||": ("&&",), "&&": ("||",)}.get(sign, ("||", "&&", "in", *_COMPARISONS))
    return f" {sign} ".join(f"({each.cel})" if each.operator in mixed else each.cel for each in predicates)


def _term(value: str | float) -> str:
    return own(value) if isinstance(value, str) else str(value)


def _value(node: Any, value: str | float) -> Any:
    return at(node, value) if isinstance(value, str) else value
