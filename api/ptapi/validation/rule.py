"""A rule across fields: one predicate that the API server and Python check, with one message.

The API server applies the CEL before it stores a job; `ptapi.load` applies the Python wherever a job enters. A `Scope`
makes rules; for the usual shapes (`exactly_one`, `unset_unless`, …) it writes the message, too.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from ptapi.errors import Finding
from ptapi.text.messages import shown
from ptapi.validation.predicate import Predicate, at, child, compare, count_set, has, is_multiple, unset


@dataclass(frozen=True)
class Rule:
    """A predicate on every object at a scope, and what a field of it accepts.

    scope: where the rule stands (`spec.rewards[]`: every entry); field: what is wrong, relative to it.
    cel_message: CEL that makes the message on the API server, where it depends on the value.
    secret: the value must not be shown.
    """

    scope: str
    field: str
    accepted: str
    predicate: Predicate
    hint: str = ""
    secret: bool = False
    cel_message: str = ""

    @property
    def message(self) -> str:
        """Return the API server's message: the same text as a finding's."""
        return f"{self.accepted}; hint: {self.hint}" if self.hint else self.accepted

    def findings(self, objects: Iterable[tuple[str, Any]]) -> list[Finding]:
        """Return one finding per object that breaks the rule, of those at its scope (`objects_at`)."""
        return [
            Finding(_join(path, self.field), self._value(node), self.accepted, self.hint)
            for path, node in objects
            if not self.predicate.holds(node)
        ]

    def _value(self, node: Any) -> str:
        return "(not shown)" if self.secret else displayed(at(node, self.field))


@dataclass(frozen=True)
class Scope:
    """The objects of a job that rules look at, by their path: `spec.rewards[]` is every reward."""

    path: str

    def rule(self, field: str, accepted: str, predicate: Predicate, hint: str = "", secret: bool = False) -> Rule:
        """Make a rule with its own message."""
        return Rule(self.path, field, accepted, predicate, hint, secret)

    def exactly_one(self, *fields: str, parent: str = "", hint: str = "", secret: bool = False) -> Rule:
        """Require one of several fields; parent: the map that holds them, below the scope."""
        paths = tuple(_join(parent, field) for field in fields)
        predicate = has(paths[0]) ^ has(paths[1]) if len(paths) == 2 else count_set(paths, "==", 1)
        return self.rule(parent, f"exactly one of {', '.join(fields)}", predicate, hint, secret)

    def unset_unless(self, field: str, predicate: Predicate, why: str, hint: str = "", secret: bool = False) -> Rule:
        """Accept a field only where the predicate holds; why: the rest of the message, after `unset, `."""
        return self.rule(field, f"unset, {why}", unset(field) | predicate, hint, secret)

    def less_than(self, field: str, limit: str, why: str, *, unless: Predicate) -> Rule:
        """Require a number below another field's, unless a predicate holds."""
        return self.rule(field, f"less than {limit}, {why}", unless | compare(field, "<", limit))

    def multiple_of(self, field: str, divisor: str, why: str, hint: str = "", *, unless: Predicate) -> Rule:
        """Require a multiple of another field, unless a predicate holds."""
        return self.rule(field, f"a multiple of {divisor}, {why}", unless | is_multiple(field, divisor), hint)


SPEC = Scope("spec")


def objects_at(job: BaseModel, scope: str) -> Iterator[tuple[str, Any]]:
    """Yield the objects that a scope names, with their paths; absent ones are skipped."""
    nodes: list[tuple[str, Any]] = [("", job)]
    for step in scope.split(".") if scope else []:
        name, is_list = step.removesuffix("[]"), step.endswith("[]")
        nodes = [(_join(path, name), child(node, name)) for path, node in nodes]
        nodes = [(path, node) for path, node in nodes if node is not None]
        if is_list:
            nodes = [(f"{path}[{i}]", entry) for path, node in nodes for i, entry in enumerate(node)]
    yield from nodes


def displayed(value: Any) -> str:
    """Return a value for a message: of a model, only what is set in it."""
    if isinstance(value, BaseModel):
        return shown(value.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True))
    if isinstance(value, list):
        return f"[{', '.join(displayed(entry) for entry in value)}]"[:80]
    return "(missing)" if value is None else shown(value)


def _join(path: str, field: str) -> str:
    return f"{path}.{field}" if path and field else path or field
