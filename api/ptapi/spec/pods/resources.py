"""Requests and limits of a job's containers, in Kubernetes' names and units."""

from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema

from ptapi.quantity import PATTERN, parse_quantity
from ptapi.spec.base import SpecModel


def _checked(value: int | str) -> int | str:
    """Return the value if the parser of quantities takes it and it is not negative."""
    if parse_quantity(value) < 0:
        raise ValueError(f"'{value}' is below 0")
    return value


Quantity = Annotated[
    int | str,
    AfterValidator(_checked),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "pattern": PATTERN, "minimum": 0, "maxLength": 32}),
]


class Amounts(SpecModel):
    """Amounts of a node's resources."""

    cpu: Quantity | None = None
    """Cores."""
    memory: Quantity | None = None
    """Memory."""
    ephemeral_storage: Annotated[Quantity | None, Field(alias="ephemeral-storage")] = None
    """Space on the node's disk: the container's files, its log, emptyDir volumes."""


AMOUNTS = ("cpu", "memory", "ephemeral-storage")


class ContainerResources(SpecModel):
    """The resources of a container, as in Kubernetes."""

    requests: Amounts | None = None
    """What its node must have free. Unset: the limit."""
    limits: Amounts | None = None
    """What it may not exceed: more memory ends it (OOMKilled), more storage evicts its pod, more CPU slows it down."""


class Resources(SpecModel):
    """The resources of the job's containers. A resource that is named here replaces its default, request and limit."""

    trainer: ContainerResources | None = None
    """Each trainer's container, also the one in a Pathways head. Unset: on TPUs without `queue` most of the host,
    where the machine's size is known; in a Pathways head 24 CPUs and 100G; on CPU devices 500m and 1Gi."""
    preflight: ContainerResources | None = None
    """Preflight's container. Unset: 1 CPU and 3Gi, at most 6Gi."""
    stage: ContainerResources | None = None
    """The container that stages a model (`model.stage`). Unset: 1 CPU and 1Gi, at most 4Gi. Four files at a time pass
    through its disk."""
    pathways_resource_manager: ContainerResources | None = None
    """Pathways' resource manager. Unset: 8 CPUs and 32G."""
    pathways_proxy: ContainerResources | None = None
    """Pathways' proxy. Unset: 16 CPUs and 100G."""
    pathways_worker: ContainerResources | None = None
    """A Pathways worker, beside its chips. Unset: chips only."""
    colocated_python: ContainerResources | None = None
    """The sidecar of `pathways.colocatedPythonImage`. Unset: none."""
