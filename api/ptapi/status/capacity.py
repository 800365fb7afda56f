"""How the chips are obtained: every attempt, and the node pools."""

from typing import Annotated

from pydantic import Field

from ptapi.spec.base import SpecModel
from ptapi.status.field_types import Short, Time


class CapacityAttempt(SpecModel):
    """One attempt to obtain the chips."""

    option: Short
    """The entry of spec.capacity."""
    started: Time
    """When the attempt started."""
    outcome: Short = ""
    """How the attempt ended; empty while it is in progress."""
    entry: int = 0
    """Index of the entry in spec.capacity."""
    zone: Annotated[str, Field(max_length=63)] = ""
    """The zone of the attempt; empty for existing nodes."""
    round: int = 0
    """How often the whole list had been tried before."""
    priority: int = 0
    """Value of the job's PriorityClass when it joined the queue for these chips."""
    first: Time | None = None
    """When it reached the head of that queue."""
    granted: Time | None = None
    """When it was admitted; absent before, and for chips without a queue."""
    scaling_up: Time | None = None
    """When a cluster autoscaler began to make nodes for it; jobs behind it no longer wait for it then."""
    ready: Time | None = None
    """When the chips were ready."""
    ended: Time | None = None
    """When the attempt was abandoned, or its chips were released."""
    failure_class: Annotated[str, Field(max_length=64)] = ""
    """Why the attempt was abandoned: one of the failure classes."""


class NodePoolStatus(SpecModel):
    """The node pool of one slice."""

    slice: int
    """Index of the slice."""
    name: Annotated[str, Field(max_length=63)]
    """Name of the node pool in GKE."""
    operation: Annotated[str, Field(max_length=253)] = ""
    """Name of the GKE operation that creates it; polled, never blocked on."""


class CapacityStatus(SpecModel):
    """How the chips are obtained."""

    attempts: Annotated[list[CapacityAttempt], Field(max_length=64)] = []
    """Newest last."""
    node_pools: Annotated[list[NodePoolStatus], Field(max_length=512)] = []
    """Node pools of the job, including those being created."""
    round: int = 0
    """How often the whole list was tried without success."""
    retry_after: Time | None = None
    """When the list is retried from the beginning."""
