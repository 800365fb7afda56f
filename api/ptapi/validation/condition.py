"""Conditions over one object of a job: each is written once and holds as CEL and as Python.

CEL's `self` is the object that `holds` gets; fields are dotted camelCase paths below it. A comparison means nothing
below an unset parent, so the condition that rules this out stands to its left.
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


@dataclass(frozen=True)
class Condition:
    """A condition in both languages.

    cel: true over the object after defaulting; empty where CEL cannot say it, and then Python alone checks.
    holds: the same over the model. operator: the outermost of the CEL, which decides about parentheses.
    """

    cel: str
    holds: Callable[[Any], bool]
    operator: str = ""

    def __or__(self, other: Condition) -> Condition:
        """Return the condition that either of two holds."""
        return Condition(_joined("||", self, other), lambda node: self.holds(node) or other.holds(node), "||")

    def __and__(self, other: Condition) -> Condition:
        """Return the condition that both hold."""
        return Condition(_joined("&&", self, other), lambda node: self.holds(node) and other.holds(node), "&&")

    def __xor__(self, other: Condition) -> Condition:
        """Return the condition that one of two holds, and not both."""
        return Condition(_joined("!=", self, other), lambda node: self.holds(node) != other.holds(node), "!=")

    def iff(self, other: Condition) -> Condition:
        """Return the condition that both hold, or neither."""
        return Condition(_joined("==", self, other), lambda node: self.holds(node) == other.holds(node), "==")

    def __invert__(self) -> Condition:
        """Return the condition that this one does not hold."""
        cel = f"({self.cel})" if self.operator else self.cel
        return Condition(self.cel and f"!{cel}", lambda node: not self.holds(node))


def has(field: str) -> Condition:
    """Require a value in a field; of lists ask `filled`."""
    return Condition(f"has(self.{field})", lambda node: at(node, field) is not None)


def unset(field: str) -> Condition:
    """Require that a field is absent."""
    return ~has(field)


def filled(field: str) -> Condition:
    """Require at least one entry in a list."""
    return has(field) & Condition(f"self.{field}.size() > 0", lambda node: bool(at(node, field)))


def empty(field: str) -> Condition:
    """Require that a list, or a text, is absent or empty."""
    return Condition(f"!has(self.{field}) || self.{field}.size() == 0", lambda node: not at(node, field), "||")


def is_true(field: str) -> Condition:
    """Require true in a boolean field."""
    return Condition(f"self.{field}", lambda node: at(node, field) is True)


def equals(field: str, value: str | float) -> Condition:
    """Require one value."""
    return Condition(f"self.{field} == {value!r}", lambda node: at(node, field) == value, "==")


def differs(field: str, value: str | float) -> Condition:
    """Require any value but one."""
    return Condition(f"self.{field} != {value!r}", lambda node: at(node, field) != value, "!=")


def one_of(field: str, *values: str) -> Condition:
    """Require one of several values."""
    return Condition(f"self.{field} in {list(values)}", lambda node: at(node, field) in values, "in")


def compare(field: str, sign: str, other: str | float) -> Condition:
    """Compare a number with a number, or with another field."""
    return Condition(
        f"self.{field} {sign} {_term(other)}",
        lambda node: _COMPARISONS[sign](at(node, field), _value(node, other)),
        sign,
    )


def is_multiple(field: str, divisor: str | int) -> Condition:
    """Require a multiple of a number, or of another field."""
    return Condition(
        f"self.{field} % {_term(divisor)} == 0", lambda node: at(node, field) % _value(node, divisor) == 0, "=="
    )


def each_once(field: str) -> Condition:
    """Require different entries in a list; Python alone checks, because CEL's cost would be quadratic."""
    return Condition("", lambda node: _all_differ(at(node, field) or []))


def _all_differ(values: list[Any]) -> bool:
    return all(value not in values[:index] for index, value in enumerate(values))


def starts_with(field: str, prefix: str) -> Condition:
    """Require text with a prefix."""
    return Condition(f"self.{field}.startsWith('{prefix}')", lambda node: at(node, field).startswith(prefix))


def matches(field: str, pattern: str) -> Condition:
    """Require text in which the pattern, in the syntax that RE2 and Python share, is found."""
    return Condition(f"self.{field}.matches('{pattern}')", lambda node: re.search(pattern, at(node, field)) is not None)


def count_set(fields: tuple[str, ...], sign: str, number: int) -> Condition:
    """Compare the number of fields that have a value."""
    terms = ", ".join(f"has(self.{field})" for field in fields)
    return Condition(
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


def _joined(sign: str, *conditions: Condition) -> str:
    if not all(condition.cel for condition in conditions):
        return ""
    # Comparisons bind closer than || and &&, so those two alone need parentheses, in each other.
    mixed = {"||": ("&&",), "&&": ("||",)}.get(sign, ("||", "&&", "in", *_COMPARISONS))
    return f" {sign} ".join(f"({each.cel})" if each.operator in mixed else each.cel for each in conditions)


def _term(value: str | float) -> str:
    return f"self.{value}" if isinstance(value, str) else str(value)


def _value(node: Any, value: str | float) -> Any:
    return at(node, value) if isinstance(value, str) else value
