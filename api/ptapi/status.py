"""The status of a PostTrainJob: what the operator observed, written by one module of the operator."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from ptapi.conditions import ConditionType, Phase
from ptapi.spec.base import SpecModel, by_key

Quantity = Annotated[str, Field(max_length=64)]
Short = Annotated[str, Field(max_length=1024)]
Long = Annotated[str, Field(max_length=32768)]
Time = Annotated[str, Field(max_length=64)]


class Condition(SpecModel):
    """One aspect of the job, as in metav1.Condition."""

    type: ConditionType
    """What it is about."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, Field(max_length=1024)]
    """One word."""
    message: Long = ""
    """A sentence that a person can act on."""
    last_transition_time: Time
    """When `status` last changed."""
    observed_generation: int = 0
    """The generation of the spec that this was seen for."""


class ProgressStatus(SpecModel):
    """How far the run is."""

    step: int = 0
    """Optimizer steps done."""
    total: int = 0
    """Optimizer steps of the run."""
    steps: Quantity = ""
    """`120/420`: step and total, for the table."""
    percent: int = 0
    """step / total."""
    seconds_per_step: float | None = None
    """Recent mean."""
    eta: Annotated[str, Field(max_length=64)] = ""
    """Time to the end, as in `1h12m`."""
    stage: Annotated[str, Field(max_length=32)] = ""
    """What the trainer is doing."""
    updated: Time = ""
    """The trainer's heartbeat."""


class MetricsStatus(SpecModel):
    """What the run learns. Loss and reward are text because printer columns truncate numbers to integers."""

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
    """Optimizer steps that the weights which sampled were behind (`rollout.maxStaleness`)."""
    tokens_per_second_per_chip: Quantity = ""
    """Throughput."""
    mfu: Quantity = ""
    """Model FLOPs utilisation."""
    hbm_in_use: Quantity = ""
    """Accelerator memory in use."""
    eval_loss: Quantity = ""
    """Held-out loss."""
    eval_reward: Quantity = ""
    """Held-out reward of greedy completions."""


class CheckpointStatus(SpecModel):
    """The newest good checkpoint."""

    step: int
    """Its step."""
    uri: Short
    """Where it is."""
    time: Time
    """When it was committed."""


class PreflightProgram(SpecModel):
    """A program of the job, as compiled or computed."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, Field(max_length=128)]
    """Which one."""
    stage: Annotated[str, Field(max_length=32)]
    """Who says so: `formula`, `fast` or `full` (compile)."""
    peak_gib: float
    """Memory per chip at its highest, GiB."""


class PreflightChange(SpecModel):
    """A change of the job with which it fits, tried one at a time with the formula."""

    model_config = ConfigDict(extra="ignore")

    change: Annotated[str, Field(max_length=256)]
    """What is changed."""
    settings: Short = ""
    """The fields of spec, as `training.microBatchSize=8`."""
    peak_gib: float
    """Memory per chip then, GiB."""
    available_gib: float
    """What a chip gives a program then, GiB."""


class PreflightStatus(SpecModel):
    """Whether the job fits its chips: also what preflight's pod says when it ends. What a newer trainer says beyond
    these fields is not read."""

    model_config = ConfigDict(extra="ignore")

    outcome: Literal["Fits", "DoesNotFit", "Undecided"]
    """The verdict."""
    line: Short = ""
    """One line for a person."""
    stage: Annotated[str, Field(max_length=32)] = ""
    """Who decided: `formula`, `fast` or `full` (compile)."""
    peak_gib: float | None = None
    """Memory per chip at its highest, GiB."""
    available_gib: float | None = None
    """What a chip gives a program, GiB."""
    seconds_per_step: float | None = None
    """Roofline: a step takes at least that long."""
    tokens_per_second_per_chip: float | None = None
    """Roofline: at most so many."""
    chip_hours: float | None = None
    """Of the whole run, at least."""
    programs: Annotated[list[PreflightProgram], Field(max_length=16)] = []
    """Every program that was looked at."""
    largest: Annotated[list[str], Field(max_length=16)] = []
    """The largest buffers, as `optimizer state 7.5 GiB`."""
    changes: Annotated[list[PreflightChange], Field(max_length=8)] = []
    """The best changes with which it fits, where it does not."""
    smallest: Annotated[list[str], Field(max_length=8)] = []
    """The smallest slices that hold the job as it is, where its own does not; the cheapest first."""
    notes: Annotated[list[str], Field(max_length=8)] = []
    """What else a person should know."""
    versions: Annotated[dict[str, str], Field(max_length=8)] = {}
    """Of jax, libtpu and posttrain."""
    key: Annotated[str, Field(max_length=64)] = ""
    """Hash of model, training, chips and versions: the same key has the same verdict."""
    remembered: bool = False
    """Whether an earlier job of the same key was compiled, and this one not."""


class CapacityAttempt(SpecModel):
    """One try at obtaining the chips."""

    option: Short
    """The entry of spec.capacity."""
    started: Time
    """When it began."""
    outcome: Short = ""
    """How it ended; empty while it lasts."""
    entry: int = 0
    """Index of the entry in spec.capacity."""
    zone: Annotated[str, Field(max_length=63)] = ""
    """The zone it was tried in; empty for nodes that are there."""
    round: int = 0
    """How often the whole list had been tried before."""
    priority: int = 0
    """Value of the job's PriorityClass when it joined the line for these chips."""
    first: Time | None = None
    """When it came to the head of that line."""
    granted: Time | None = None
    """When its turn came; absent before, and for chips that nobody stands in line for."""
    ready: Time | None = None
    """When the chips were there."""
    ended: Time | None = None
    """When it was given up, or its chips were given back."""
    failure_class: Annotated[str, Field(max_length=64)] = ""
    """Why it was given up: one of the failure classes."""


class NodePoolStatus(SpecModel):
    """The node pool of one slice."""

    slice: int
    """Index of the slice."""
    name: Annotated[str, Field(max_length=63)]
    """Name of the node pool in GKE."""
    operation: Annotated[str, Field(max_length=253)] = ""
    """Name of the GKE operation that makes it; polled, never waited for."""


class CapacityStatus(SpecModel):
    """How the chips are obtained."""

    attempts: Annotated[list[CapacityAttempt], Field(max_length=64)] = []
    """Newest last."""
    node_pools: Annotated[list[NodePoolStatus], Field(max_length=512)] = []
    """Node pools that the job holds, or that are being made for it."""
    round: int = 0
    """How often the whole list was tried without success."""
    retry_after: Time | None = None
    """When the list is tried from its beginning again."""


class TimeStatus(SpecModel):
    """Seconds by what they went into, and the useful share."""

    queueing: int = 0
    """Waiting for quota."""
    provisioning: int = 0
    """Waiting for nodes."""
    held: int = 0
    """Holding nodes, for whatever."""
    compiling: int = 0
    """Compiling."""
    training: int = 0
    """Taking steps."""
    restoring: int = 0
    """Loading weights and checkpoints."""
    goodput: Quantity = ""
    """training / held, in percent."""


class CostStatus(SpecModel):
    """What the run has used."""

    chip_hours: Quantity = ""
    """Chips × hours since the pods got their nodes."""
    held: Annotated[dict[str, int], Field(max_length=8)] = {}
    """Seconds that nodes were held, by how they were obtained: they cost differently."""
    amount: Quantity = ""
    """Money, where the operator has a price table."""


class Links(SpecModel):
    """Where to look."""

    run: Short = ""
    """The run directory."""
    logs: Short = ""
    """How to read the logs."""
    cloud_logs: Annotated[str, Field(max_length=2048)] = ""
    """The logs of every pod in Cloud Logging, also of pods that are gone."""
    cloud_logs_of_rank: Annotated[str, Field(max_length=2048)] = ""
    """Those of rank 0; another rank's: `ptctl workload logs NAME --link --rank N`."""
    tensorboard: Short = ""
    """How to open TensorBoard."""
    console: Short = ""
    """The cloud console."""


class FailureStatus(SpecModel):
    """The newest failure."""

    failure_class: Annotated[str, Field(max_length=64)]
    """One of the failure classes."""
    message: Long
    """What happened, in a line."""
    exit_code: int | None = None
    """The trainer's exit code."""
    pod: Annotated[str, Field(max_length=253)] = ""
    """The pod that failed first."""
    node: Annotated[str, Field(max_length=253)] = ""
    """The node it ran on."""
    log: Long = ""
    """The end of its log, where the trainer did not say itself what happened. What looks like a secret is left out."""
    time: Time = ""
    """When."""


class PostTrainJobStatus(SpecModel):
    """What the operator observed."""

    phase: Phase = Phase.PENDING
    """One word."""
    observed_generation: int = 0
    """The generation of the spec this status is about."""
    conditions: Annotated[list[Condition], Field(max_length=16, json_schema_extra=by_key("type"))] = []
    """Validated, Preflighted, QuotaReserved, CapacityReady, Running, Suspended, Complete, Failed."""
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
    progress: ProgressStatus = ProgressStatus()
    """How far."""
    metrics: MetricsStatus = MetricsStatus()
    """What it learns."""
    checkpoint: CheckpointStatus | None = None
    """Newest good checkpoint."""
    preflight: PreflightStatus | None = None
    """Whether it fits its chips."""
    capacity: CapacityStatus = CapacityStatus()
    """How the chips are obtained."""
    restarts: Annotated[dict[str, int], Field(max_length=32)] = {}
    """Restarts by failure class."""
    failure: FailureStatus | None = None
    """The newest failure."""
    time: TimeStatus = TimeStatus()
    """Where the time went."""
    accounted_until: Time | None = None
    """`time` and `cost` are summed up to here; the operator goes on from here after it was away."""
    cost: CostStatus = CostStatus()
    """What was used."""
    links: Links = Links()
    """Where to look."""

    def condition(self, kind: ConditionType) -> Condition | None:
        """The condition of that type, whether it holds or not."""
        return next((each for each in self.conditions if each.type == kind), None)

    def holds(self, kind: ConditionType) -> bool:
        """Whether the condition of that type is True."""
        found = self.condition(kind)
        return found is not None and found.status == "True"
