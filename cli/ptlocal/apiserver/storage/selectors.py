"""Label and field selectors, and the small record of an object that they match.

Every stored object has a `Selectable`: its labels and the values of the fields that its kind can be selected by. The
database stores it next to the body, so that a list or a watch filters without parsing bodies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ptlocal.apiserver.errors import StatusError, bad_request
from ptlocal.apiserver.kinds.builtin_kinds import Kind

Requirement = Callable[[Mapping[str, str]], bool]
_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_VALUE = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
_SET_BASED = re.compile(rf"^({_KEY})\s+(in|notin)\s*\(([^()]*)\)$")
_EQUALITY = re.compile(rf"^({_KEY})\s*(==|=|!=)\s*({_VALUE})?$")
_COMPARE = re.compile(rf"^({_KEY})\s*(<|>)\s*(-?\d+)$")
_EXISTS = re.compile(rf"^(!?)\s*({_KEY})$")


@dataclass(frozen=True)
class Selectable:
    """What selectors can match of one object: its labels, and the fields that its kind offers."""

    labels: Mapping[str, str]
    fields: Mapping[str, str]

    @classmethod
    def of(cls, kind: Kind, obj: Mapping[str, Any]) -> Selectable:
        """Return the record of an object."""
        meta = obj["metadata"]
        fields = {"metadata.name": meta.get("name", ""), "metadata.namespace": meta.get("namespace", "")}
        for label, path in kind.fields.items():
            fields[label] = _text(_lookup(obj, path))
        return cls(meta.get("labels") or {}, fields)


@dataclass(frozen=True)
class Selector:
    """A label and field selector."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    @property
    def is_everything(self) -> bool:
        """Return True if it matches every object."""
        return not self.labels and not self.fields

    def matches(self, what: Selectable) -> bool:
        """Return True if the object matches."""
        return all(r(what.labels) for r in self.labels) and all(r(what.fields) for r in self.fields)


def parse(kind: Kind, labels: str | None, fields: str | None) -> Selector:
    """Parse the selectors of a request."""
    return Selector(
        tuple(_label_requirement(part) for part in _split(labels or "")),
        tuple(_field_requirement(kind, part) for part in (fields or "").split(",") if part.strip()),
    )


def _lookup(obj: Any, path: str) -> Any:
    for step in path.split("."):
        if not isinstance(obj, Mapping):
            return None
        obj = obj.get(step)
    return obj


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _split(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    parts = re.split(r",(?![^(]*\))", text)
    return [part.strip() for part in parts if part.strip()]


def _label_requirement(text: str) -> Requirement:
    if match := _SET_BASED.match(text):
        key, operator = match[1], match[2]
        values = {value.strip() for value in match[3].split(",")}
        if operator == "in":
            return lambda labels: labels.get(key) in values if key in labels else False
        return lambda labels: labels.get(key) not in values
    if match := _EQUALITY.match(text):
        key, operator, value = match[1], match[2], match[3] or ""
        if operator == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if match := _COMPARE.match(text):
        return _comparison(match[1], match[2], int(match[3]))
    if match := _EXISTS.match(text):
        key = match[2]
        if match[1]:
            return lambda labels: key not in labels
        return lambda labels: key in labels
    raise bad_request(
        f'unable to parse requirement: found "{text}", expected a label selector such as '
        "key=value, key!=value, key in (a,b), key notin (a,b), key or !key"
    )


def _comparison(key: str, operator: str, bound: int) -> Requirement:
    def holds(labels: Mapping[str, str]) -> bool:
        try:
            value = int(labels[key])
        except (KeyError, ValueError):
            return False
        return value > bound if operator == ">" else value < bound

    return holds


def _field_requirement(kind: Kind, text: str) -> Requirement:
    match = re.match(r"^\s*([^=!]+?)\s*(==|=|!=)\s*(.*?)\s*$", text)
    if not match:
        raise bad_request(f"invalid selector: '{text}'; can't understand '{text}'")
    label, operator, value = match.groups()
    if label not in kind.fields and label not in ("metadata.name", "metadata.namespace"):
        raise _unsupported(kind, text, label)
    if operator == "!=":
        return lambda fields: fields.get(label, "") != value
    return lambda fields: fields.get(label, "") == value


def _unsupported(kind: Kind, text: str, label: str) -> StatusError:
    if kind.is_custom:
        return bad_request(f"field label not supported: {label}")
    group_version = f"{kind.group}/{kind.version}" if kind.group else f"/{kind.version}"
    return bad_request(
        f'Unable to find "{group_version}, Resource={kind.plural}" that match label selector "", '
        f'field selector "{text}": field label not supported: {label}'
    )
