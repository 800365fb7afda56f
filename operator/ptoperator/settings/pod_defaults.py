"""What an administrator sets for every job's pods and containers: `spec.pod` and `spec.resources`, as JSON.

Both are checked as in a job, with the same messages. The job's own words win: a map is joined key by key, a list is
appended to, and a container resource that the job names replaces the default's request and limit.
"""

import json
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel

from ptapi.errors import SpecError
from ptapi.load import parse_job
from ptapi.spec import API_GROUP, API_VERSION, KIND, Pod, Resources

Model = TypeVar("Model", bound=BaseModel)


class DefaultsError(ValueError):
    """An invalid default: says what is wrong and what is accepted."""


@cache
def pod(text: str) -> Pod:
    """Parse the default of `spec.pod`; an empty text is none. Raises DefaultsError."""
    return _spec("pod", text).pod or Pod()


@cache
def resources(text: str) -> Resources:
    """Parse the default of `spec.resources`; an empty text is none. Raises DefaultsError."""
    return _spec("resources", text).resources or Resources()


def joined(below: Model, above: Model | None) -> Model:
    """Return the one with what the other says over it."""
    if above is None:
        return below
    fields = {name: getattr(above, name) for name in type(above).model_fields}
    return below.model_copy(update={name: _join(getattr(below, name), value) for name, value in fields.items()})


def _join(below: Any, above: Any) -> Any:
    if below is None or above is None:
        return below if above is None else above
    if isinstance(above, BaseModel):
        return joined(below, above)
    if isinstance(above, dict):
        return {**below, **above}
    if isinstance(above, list):
        replaced = [_identity(each) for each in above]
        return [each for each in below if _identity(each) not in replaced] + above
    return above


def _identity(entry: Any) -> Any:
    """Return the name of a named entry: two containers may not share one."""
    return getattr(entry, "name", entry)


def _spec(field: str, text: str) -> Any:
    """Return the spec of the least job that has this field."""
    try:
        value = json.loads(text or "{}")
        return parse_job(
            {
                "apiVersion": f"{API_GROUP}/{API_VERSION}",
                "kind": KIND,
                "metadata": {"name": "defaults"},
                "spec": {
                    "model": {"uri": "random://tiny"},
                    "algorithm": {"sft": {}},
                    "data": {"train": {"uri": "gs://bucket/rows.jsonl"}},
                    "accelerator": {"type": "cpu-1"},
                    "output": {"uri": "gs://bucket/runs"},
                    field: value,
                },
            }
        ).spec
    except json.JSONDecodeError as error:
        raise DefaultsError(f"is not JSON: {error}; accepted: spec.{field} of a job") from None
    except SpecError as error:
        raise DefaultsError(str(error)) from None
