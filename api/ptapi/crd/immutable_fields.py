"""What may change after a job was created: almost nothing, because a run is the answer to one question.

`CHANGEABLE` may change at any time, `queue` while the job is suspended. These rules are CEL alone, because only the API
server sees a job as it was. The one idea: a rule per field, as deep as maps are always there, so that a change is named
where it was made (`spec.training.steps`, not `spec`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from ptapi.spec import PostTrainJobSpec
from ptapi.spec.openapi_schema import INT_OR_STRING, Schema, structural

CHANGEABLE = ("runPolicy.suspend", "runPolicy.activeDeadlineSeconds", "runPolicy.ttlSecondsAfterFinished")
QUEUE = "queue"
MESSAGE = f"cannot change after creation; accepted changes: {', '.join(CHANGEABLE)}, and {QUEUE} while suspended"
QUEUE_MESSAGE = "may change only while runPolicy.suspend is true; hint: suspend the job first"


@cache
def frozen_fields() -> tuple[str, ...]:
    """Dotted names of what never changes, relative to the spec."""
    return tuple(name for name in _leaves(structural(PostTrainJobSpec), "") if name not in (*CHANGEABLE, QUEUE))


def transition_rule(field: str) -> str:
    """CEL over spec: the field is absent before and after, or the same."""
    new, old = f"self.{field}", f"oldSelf.{field}"
    if field in _always_there():
        return f"{new} == {old}"
    return f"has({new}) == has({old}) && (!has({new}) || {new} == {old})"


def queue_rule() -> str:
    """CEL over spec: the queue is the same, or the job was suspended."""
    return f"({transition_rule(QUEUE)}) || oldSelf.runPolicy.suspend"


def _leaves(schema: Schema, path: str) -> Iterator[str]:
    """Fields, going into maps that are always there and of whose fields CEL sees every one."""
    for name, field in schema["properties"].items():
        below = field.get("properties", {}).values()
        if below and _is_there(schema, name) and all("type" in child or INT_OR_STRING in child for child in below):
            yield from _leaves(field, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def _is_there(schema: Schema, name: str) -> bool:
    """Whether the API server holds the field in every job: it is required, or a default fills it in."""
    field = schema["properties"][name]
    if name in schema.get("required", []):
        return True
    if isinstance(field.get("default"), dict):
        return any(_is_there(field, below) for below in field["properties"])
    return field.get("default") not in (None, [])


@cache
def _always_there() -> frozenset[str]:
    return frozenset(_there(structural(PostTrainJobSpec), ""))


def _there(schema: Schema, path: str) -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        if _is_there(schema, name):
            yield f"{path}{name}"
            yield from _there(field, f"{path}{name}.")
