"""Environment variables, as in Kubernetes."""

from typing import Annotated

from pydantic import Field

from ptapi.spec.base import EnvName, SpecModel
from ptapi.spec.model import SecretKeyRef


class EnvSource(SpecModel):
    """The source of a variable's value."""

    secret_key_ref: SecretKeyRef
    """A key of a Secret."""


class EnvVar(SpecModel):
    """An environment variable."""

    name: EnvName
    """Name of the variable."""
    value: Annotated[str, Field(max_length=4096)] | None = None
    """Its value; tokens belong in a Secret."""
    value_from: EnvSource | None = None
    """A Secret's key, instead of `value`."""
