"""A rule across fields: one value that the CRD carries as CEL and Python checks, with one message.

The API server applies the CEL before anything is stored; `ptapi.load` applies the Python wherever a job enters.
Both look at the object at `scope`: CEL's `self` is what `is_kept` gets. A test runs both on the same jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel

from ptapi.errors import Finding
from ptapi.text.messages import shown


@dataclass(frozen=True)
class Rule:
    """scope: where the rule stands (`spec.rewards[]`: every entry); field: what is wrong, relative to it.

    cel: true when the rule is kept, over the object after defaulting; empty where CEL cannot say it.
    cel_message: CEL that makes the message on the API server, where it depends on the value.
    secret: the value must not be shown.
    """

    scope: str
    field: str
    accepted: str
    cel: str
    is_kept: Callable[[Any], bool]
    hint: str = ""
    secret: bool = False
    cel_message: str = ""

    @property
    def message(self) -> str:
        """What the API server says: the same words as a finding's."""
        return f"{self.accepted}; hint: {self.hint}" if self.hint else self.accepted

    def findings(self, objects: Iterable[tuple[str, Any]]) -> list[Finding]:
        """One finding per object that breaks the rule, of those at its scope (`objects_at`)."""
        return [
            Finding(_join(path, self.field), self._seen(found), self.accepted, self.hint)
            for path, found in objects
            if not self.is_kept(found)
        ]

    def _seen(self, found: Any) -> str:
        return "(not shown)" if self.secret else seen(at(found, self.field))


def objects_at(job: BaseModel, scope: str) -> Iterator[tuple[str, Any]]:
    """The objects that a scope names, with their paths; absent ones are skipped."""
    found: list[tuple[str, Any]] = [("", job)]
    for step in scope.split(".") if scope else []:
        name, is_list = step.removesuffix("[]"), step.endswith("[]")
        found = [(_join(path, name), child(node, name)) for path, node in found]
        found = [(path, node) for path, node in found if node is not None]
        if is_list:
            found = [(f"{path}[{i}]", entry) for path, node in found for i, entry in enumerate(node)]
    yield from found


def at(node: Any, field: str) -> Any:
    """The value of a dotted camelCase field below a model; None where the way to it is absent."""
    for name in field.split(".") if field else []:
        node = child(node, name) if node is not None else None
    return node


def child(node: BaseModel, alias: str) -> Any:
    """The value of a camelCase field."""
    return getattr(node, _names(type(node))[alias])


@cache
def _names(model: type[BaseModel]) -> dict[str, str]:
    """Field names by alias: a job is checked at every look of the operator, by a hundred rules."""
    return {field.alias or name: name for name, field in model.model_fields.items()}


def seen(value: Any) -> str:
    """A value for a message: of a model, only what is set in it."""
    if isinstance(value, BaseModel):
        return shown(value.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True))
    if isinstance(value, list):
        return f"[{', '.join(seen(entry) for entry in value)}]"[:80]
    return "(missing)" if value is None else shown(value)


def _join(path: str, field: str) -> str:
    return f"{path}.{field}" if path and field else path or field
