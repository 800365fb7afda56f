"""The base of every spec model: frozen, no unknown keys, camelCase outside and snake_case inside."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints
from pydantic.alias_generators import to_camel


class SpecModel(BaseModel):
    """A part of a PostTrainJob: immutable; unknown keys are refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )


def by_key(key: str) -> dict[str, JsonValue]:
    """Return the schema of a list keyed by `key`: the API server merges entries by it and refuses duplicates."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


# Every string, list and map is bounded: the API server refuses CEL rules over unbounded values.
Name = Annotated[str, StringConstraints(min_length=1, max_length=63)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
DataUri = Annotated[str, StringConstraints(max_length=1024, pattern=r"^(hf://|gs://|file:///)[^/].*$")]
OutputUri = Annotated[str, StringConstraints(max_length=1024, pattern=r"^(gs://|file:///)[^/].*$")]
CodeUri = Annotated[str, StringConstraints(max_length=1024, pattern=r"^(gs://|file:///)[^/].*\.py$")]
ModelUri = Annotated[str, StringConstraints(max_length=1024, pattern=r"^(hf://|gs://|file:///|random://)[^/].*$")]
DnsName = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
HttpUrl = Annotated[str, StringConstraints(max_length=1024, pattern=r"^https?://[^/].*$")]
EnvName = Annotated[str, StringConstraints(max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
PythonName = Annotated[str, StringConstraints(max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
PositiveInt = Annotated[int, Field(ge=1, le=1_000_000_000)]
NonNegativeInt = Annotated[int, Field(ge=0, le=1_000_000_000)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
