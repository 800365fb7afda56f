"""The interface between the verbs and a kind's rules: four functions over plain dicts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ptlocal.apiserver.errors import FieldError, invalid_value

Manifest = dict[str, Any]


def _nothing(obj: Manifest) -> None:
    return None


def _valid(obj: Manifest) -> list[FieldError]:
    return []


def _valid_update(new: Manifest, old: Manifest, subresource: str) -> list[FieldError]:
    return []


@dataclass(frozen=True)
class Rules:
    """`default` runs on every write, `create` only on new objects, both in place and before validation."""

    default: Callable[[Manifest], None] = _nothing
    create: Callable[[Manifest], None] = _nothing
    validate: Callable[[Manifest], list[FieldError]] = _valid
    validate_update: Callable[[Manifest, Manifest, str], list[FieldError]] = _valid_update


NO_RULES = Rules()
IMMUTABLE = "field is immutable"


def unchanged(path: str, new: object, old: object) -> list[FieldError]:
    """Return an error if the immutable field changes."""
    return [] if new == old else [invalid_value(path, new, IMMUTABLE)]
