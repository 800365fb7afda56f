"""The status of a PostTrainJob, put together."""

from typing import Annotated, Literal

from pydantic import Field

from ptapi.conditions import ConditionType, Phase
from ptapi.spec.base import SpecModel, by_key
from ptapi.status.capacity import CapacityStatus
from ptapi.status.field_types import Long, Time
from ptapi.status.preflight import PreflightStatus
from ptapi.status.run import (
    CheckpointStatus,
    CostStatus,
    FailureStatus,
    Links,
    MetricsStatus,
    ProgressStatus,
    SamplersStatus,
    SandboxesStatus,
    ServeStatus,
    ServiceStatus,
    SlicesStatus,
    TimeStatus,
)


class Condition(SpecModel):
    """One aspect of the job, as in metav1.Condition."""

    type: ConditionType
    """The aspect."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition is true."""
    reason: Annotated[str, Field(max_length=1024)]
    """One word."""
    message: Long = ""
    """A message that a user can act on."""
    last_transition_time: Time
    """When `status` last changed."""
    observed_generation: int = 0
    """The generation of the spec that this was observed for."""


class PostTrainJobStatus(SpecModel):
    """The state of the job, as observed by the operator."""

    phase: Phase = Phase.PENDING
    """One word."""
    observed_generation: int = 0
    """The generation of the spec that this status describes."""
    conditions: Annotated[list[Condition], Field(max_length=16, json_schema_extra=by_key("type"))] = []
    """Validated, Staged, Preflighted, QuotaReserved, CapacityReady, SandboxesReady, Running, Suspended, Complete,
    Served, Failed."""
    algorithm: Annotated[str, Field(max_length=32)] = ""
    """The algorithm, for the table."""
    chips: int = 0
    """Chips over all slices."""
    job_set: Annotated[str, Field(max_length=63)] = ""
    """Name of the JobSet."""
    start_time: Time | None = None
    """When the pods first got their nodes."""
    completion_time: Time | None = None
    """When the job ended."""
    samplers: SamplersStatus | None = None
    """The samplers with pods of their own, of a job with `rollout.placement: separate`."""
    services: Annotated[list[ServiceStatus], Field(max_length=8)] = []
    """The job's services."""
    slices: SlicesStatus | None = None
    """The slices that train, of a job with `accelerator.minSlices`."""
    sandboxes: SandboxesStatus | None = None
    """The sandboxes, of a job with `sandbox`."""
    progress: ProgressStatus = ProgressStatus()
    """The run's progress."""
    metrics: MetricsStatus = MetricsStatus()
    """The run's metrics."""
    checkpoint: CheckpointStatus | None = None
    """Newest good checkpoint."""
    staged_model: Annotated[str, Field(max_length=1024)] = ""
    """URI of the model's copy that the job reads, with `model.stage`."""
    preflight: PreflightStatus | None = None
    """Whether the job fits its chips."""
    capacity: CapacityStatus = CapacityStatus()
    """How the chips are obtained."""
    restarts: Annotated[dict[str, int], Field(max_length=32)] = {}
    """Restarts by failure class, those in place (`slices.restarts`) included."""
    failure: FailureStatus | None = None
    """The newest failure."""
    time: TimeStatus = TimeStatus()
    """Seconds by activity."""
    accounted_until: Time | None = None
    """`time` and `cost` are summed up to this time; after a restart the operator continues from here."""
    cost: CostStatus = CostStatus()
    """Resources used by the run."""
    serve: ServeStatus | None = None
    """The server of the model, of a job with `serve` that succeeded."""
    links: Links = Links()
    """Links and commands for the run."""

    @property
    def pod_restarts(self) -> dict[str, int]:
        """Return the restarts by failure class that made all pods anew."""
        in_place = {} if self.slices is None else self.slices.restarts
        return {kind: left for kind, count in self.restarts.items() if (left := count - in_place.get(kind, 0)) > 0}

    def condition(self, kind: ConditionType) -> Condition | None:
        """Return the condition of that type, whatever its status."""
        return next((condition for condition in self.conditions if condition.type == kind), None)

    def holds(self, kind: ConditionType) -> bool:
        """Return True if the condition of that type is True."""
        condition = self.condition(kind)
        return condition is not None and condition.status == "True"
