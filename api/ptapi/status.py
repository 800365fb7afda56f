"""The status of a PostTrainJob: what the operator observes, written by one module of the operator."""

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


class PreflightProgram(SpecModel):
    """A program of the job, as compiled or computed."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, Field(max_length=128)]
    """The program's name."""
    stage: Annotated[str, Field(max_length=32)]
    """Source of the estimate: `formula`, `fast` or `full` (compile)."""
    peak_gib: float
    """Peak memory per chip, GiB."""


class PreflightChange(SpecModel):
    """A change that makes the job fit, by the formula; each is tried alone."""

    model_config = ConfigDict(extra="ignore")

    change: Annotated[str, Field(max_length=256)]
    """The change."""
    settings: Short = ""
    """The fields of spec, as `training.microBatchSize=8`."""
    peak_gib: float
    """Peak memory per chip with the change, GiB."""
    available_gib: float
    """Memory per chip available to a program with the change, GiB."""


class PreflightStatus(SpecModel):
    """Whether the job fits its chips; also the termination message of preflight's pod.

    Fields of a newer trainer are ignored.
    """

    model_config = ConfigDict(extra="ignore")

    outcome: Literal["Fits", "DoesNotFit", "Undecided"]
    """The verdict."""
    line: Short = ""
    """One line for a person."""
    stage: Annotated[str, Field(max_length=32)] = ""
    """Source of the verdict: `formula`, `fast` or `full` (compile)."""
    peak_gib: float | None = None
    """Peak memory per chip, GiB."""
    available_gib: float | None = None
    """Memory per chip available to a program, GiB."""
    seconds_per_step: float | None = None
    """Lower bound of a step's duration, by the roofline model."""
    tokens_per_second_per_chip: float | None = None
    """Upper bound of the throughput, by the roofline model."""
    chip_hours: float | None = None
    """Lower bound for the whole run."""
    programs: Annotated[list[PreflightProgram], Field(max_length=16)] = []
    """Every program that was checked."""
    largest: Annotated[list[str], Field(max_length=16)] = []
    """The largest buffers, such as `optimizer state 7.5 GiB`."""
    changes: Annotated[list[PreflightChange], Field(max_length=8)] = []
    """The best changes that make the job fit, if it does not."""
    smallest: Annotated[list[str], Field(max_length=8)] = []
    """The smallest slices that fit the unchanged job, if its own does not; the cheapest first."""
    notes: Annotated[list[str], Field(max_length=8)] = []
    """Further notes for the user."""
    versions: Annotated[dict[str, str], Field(max_length=8)] = {}
    """Versions of jax, libtpu and posttrain."""
    key: Annotated[str, Field(max_length=64)] = ""
    """Hash of model, training, chips and versions: the same key has the same verdict."""
    remembered: bool = False
    """Whether the verdict is reused from an earlier job with the same key."""


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


class PostTrainJobStatus(SpecModel):
    """The state of the job, as observed by the operator."""

    phase: Phase = Phase.PENDING
    """One word."""
    observed_generation: int = 0
    """The generation of the spec that this status describes."""
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
    """The run's progress."""
    metrics: MetricsStatus = MetricsStatus()
    """The run's metrics."""
    checkpoint: CheckpointStatus | None = None
    """Newest good checkpoint."""
    preflight: PreflightStatus | None = None
    """Whether the job fits its chips."""
    capacity: CapacityStatus = CapacityStatus()
    """How the chips are obtained."""
    restarts: Annotated[dict[str, int], Field(max_length=32)] = {}
    """Restarts by failure class."""
    failure: FailureStatus | None = None
    """The newest failure."""
    time: TimeStatus = TimeStatus()
    """Seconds by activity."""
    accounted_until: Time | None = None
    """`time` and `cost` are summed up to this time; after a restart the operator continues from here."""
    cost: CostStatus = CostStatus()
    """Resources used by the run."""
    links: Links = Links()
    """Links and commands for the run."""

    def condition(self, kind: ConditionType) -> Condition | None:
        """Return the condition of that type, whatever its status."""
        return next((condition for condition in self.conditions if condition.type == kind), None)

    def holds(self, kind: ConditionType) -> bool:
        """Return True if the condition of that type is True."""
        condition = self.condition(kind)
        return condition is not None and condition.status == "True"
