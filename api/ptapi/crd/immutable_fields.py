"""Which fields may change after a job is created: almost none, because a run is one experiment.

`CHANGEABLE` may change at any time, `queue` while the job is suspended. These rules exist only as CEL, because only the
API server sees the previous version. The one idea: one rule per field, as deep as maps are always present, so that an
error names the changed field (`spec.training.steps`, not `spec`).
"""

from collections.abc import Iterator
from functools import cache

from ptapi.spec import PostTrainJobSpec
from ptapi.spec.openapi_schema import INT_OR_STRING, Schema, structural

CHANGEABLE = ("runPolicy.suspend", "runPolicy.activeDeadlineSeconds", "runPolicy.ttlSecondsAfterFinished")
QUEUE = "queue"
MESSAGE = "cannot change after creation; hint: create another job"
"""Short, because every field has it, and `kubectl apply` keeps the whole definition in one annotation."""
QUEUE_MESSAGE = "may change only while runPolicy.suspend is true; hint: suspend the job first"


@cache
def frozen_fields() -> tuple[str, ...]:
    """Return the dotted names of the fields that never change, relative to the spec."""
    return tuple(name for name in _leaves(structural(PostTrainJobSpec), "") if name not in (*CHANGEABLE, QUEUE))


def transition_rule(field: str) -> str:
    """Return CEL over the spec: the field is absent before and after, or unchanged."""
    new, old = f"self.{field}", f"oldSelf.{field}"
    if field in _always_present_fields():
        return f"{new} == {old}"
    return f"has({new}) == has({old}) && (!has({new}) || {new} == {old})"


def queue_rule() -> str:
    """Return CEL over the spec: the queue is unchanged, or the job was suspended."""
    return f"({transition_rule(QUEUE)}) || oldSelf.runPolicy.suspend"


def _leaves(schema: Schema, path: str) -> Iterator[str]:
    """Yield the fields, descending into maps that are always present and whose every field CEL can see."""
    for name, field in schema["properties"].items():
        children = field.get("properties", {}).values()
        is_visible = all("type" in child or INT_OR_STRING in child for child in children)
        if children and is_visible and _is_always_present(schema, name):
            yield from _leaves(field, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def _is_always_present(schema: Schema, name: str) -> bool:
    """Return True if every stored job has the field: it is required or has a default."""
    field = schema["properties"][name]
    if name in schema.get("required", []):
        return True
    if isinstance(field.get("default"), dict):
        return any(_is_always_present(field, below) for below in field["properties"])
    return field.get("default") not in (None, [])


@cache
def _always_present_fields() -> frozenset[str]:
    return frozenset(_present_fields(structural(PostTrainJobSpec), ""))


def _present_fields(schema: Schema, path: str) -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        if _is_always_present(schema, name):
            yield f"{path}{name}"
            yield from _present_fields(field, f"{path}{name}.")
