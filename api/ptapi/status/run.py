"""What the run does, has done and has cost."""

from typing import Annotated, Literal

from pydantic import Field

from ptapi.spec.base import SpecModel
from ptapi.status.field_types import Long, Quantity, Short, Time


class SamplersStatus(SpecModel):
    """The samplers with pods of their own."""

    total: int = 0
    """How many the job has."""
    ready: int = 0
    """How many take requests."""
    away: Annotated[list[int], Field(max_length=64)] = []
    """The numbers of those that do not."""


class ServiceStatus(SpecModel):
    """A service of the job."""

    name: Short
    """Its name."""
    total: int = 0
    """How many replicas it has."""
    ready: int = 0
    """How many take requests."""
    away: Annotated[list[int], Field(max_length=64)] = []
    """The numbers of those that do not."""


class SlicesStatus(SpecModel):
    """The slices of a run that goes on when some are lost."""

    total: int = 0
    """How many the job has."""
    training: int = 0
    """How many train."""
    restarts: Annotated[dict[str, int], Field(max_length=32)] = {}
    """Restarts of the trainer in place, by failure class; `Resized` let returned slices join."""


class SandboxesStatus(SpecModel):
    """The sandboxes of the run."""

    total: int = 0
    """Claims that there are."""
    ready: int = 0
    """How many of them are ready."""
    created: int = 0
    """Claims made so far, of `sandbox.maxCreated`."""


class ProgressStatus(SpecModel):
    """The run's progress."""

    step: int = 0
    """Optimizer steps done."""
    total: int = 0
    """Optimizer steps of the run."""
    steps: Quantity = ""
    """`120/420`: step and total, for the table."""
    percent: int = 0
    """step / total."""
    seconds_per_step: float | None = None
    """Recent mean duration of a step."""
    eta: Annotated[str, Field(max_length=64)] = ""
    """Time to the end, as in `1h12m`."""
    stage: Annotated[str, Field(max_length=32)] = ""
    """The trainer's current stage."""
    updated: Time = ""
    """Time of the trainer's newest heartbeat."""


class MetricsStatus(SpecModel):
    """The run's metrics. Loss and reward are text because printer columns truncate numbers to integers."""

    loss: Quantity = ""
    """Training loss."""
    reward: Quantity = ""
    """Mean reward."""
    kl: Quantity = ""
    """KL to the reference."""
    entropy: Quantity = ""
    """Mean token entropy of the policy."""
    completion_length: Quantity = ""
    """Mean tokens per completion."""
    staleness: Quantity = ""
    """Optimizer steps by which the sampling weights lag (`rollout.maxStaleness`)."""
    tokens_per_second_per_chip: Quantity = ""
    """Throughput in tokens per second per chip."""
    mfu: Quantity = ""
    """Model FLOPs utilisation."""
    hbm_in_use: Quantity = ""
    """Accelerator memory in use."""
    duty_cycle: Quantity = ""
    """Share of recent time in which chips compute, as tpu-info shows it."""
    eval_loss: Quantity = ""
    """Held-out loss."""
    eval_reward: Quantity = ""
    """Held-out reward of greedy completions."""


class CheckpointStatus(SpecModel):
    """The newest good checkpoint."""

    step: int
    """The checkpoint's step."""
    uri: Short
    """The checkpoint's location."""
    time: Time
    """When it was committed."""


class TimeStatus(SpecModel):
    """Seconds by activity, and the useful share."""

    queueing: int = 0
    """Waiting for quota."""
    provisioning: int = 0
    """Waiting for nodes."""
    held: int = 0
    """Holding nodes, for any activity."""
    compiling: int = 0
    """Compiling."""
    training: int = 0
    """Running training steps."""
    restoring: int = 0
    """Loading weights and checkpoints."""
    repeated: int = 0
    """Part of training: steps that were repeated."""
    fewer_slices: int = 0
    """Part of training: on fewer slices."""
    goodput: Quantity = ""
    """training / held, in percent."""


class CostStatus(SpecModel):
    """Resources used by the run."""

    chip_hours: Quantity = ""
    """Chips × hours since the pods got their nodes."""
    held: Annotated[dict[str, int], Field(max_length=8)] = {}
    """Seconds of holding nodes by capacity type, because their prices differ."""
    amount: Quantity = ""
    """Cost in money, if the operator has a price table."""


class Links(SpecModel):
    """Links and commands for the run."""

    run: Short = ""
    """The run directory."""
    logs: Short = ""
    """Command to read the logs."""
    cloud_logs: Annotated[str, Field(max_length=2048)] = ""
    """The logs of every pod in Cloud Logging, including deleted pods."""
    cloud_logs_of_rank: Annotated[str, Field(max_length=2048)] = ""
    """The logs of rank 0; for another rank: `ptctl workload logs NAME --link --rank N`."""
    tensorboard: Short = ""
    """Command to open TensorBoard."""
    console: Short = ""
    """The cloud console."""


class ServeStatus(SpecModel):
    """The server of the job's model."""

    state: Literal["Starting", "Ready"]
    """Whether it answers; the condition Served says more."""
    url: Short = ""
    """Where clients in the cluster reach it."""
    model: Short = ""
    """The model's name for clients."""


class FailureStatus(SpecModel):
    """The newest failure."""

    failure_class: Annotated[str, Field(max_length=64)]
    """One of the failure classes."""
    message: Long
    """What happened, in one line."""
    exit_code: int | None = None
    """The trainer's exit code."""
    pod: Annotated[str, Field(max_length=253)] = ""
    """The pod that failed first."""
    node: Annotated[str, Field(max_length=253)] = ""
    """The node of that pod."""
    log: Long = ""
    """The end of its log, if the trainer itself reported no cause. Apparent secrets are removed."""
    time: Time = ""
    """Time of the failure."""
