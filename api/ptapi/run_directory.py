"""The run directory: written by the trainer, read by everything else; the same layout on `gs://` and `file://`.

<output.uri>/<job name>/
    owner.json          which job owns this directory (another job is refused)
    lease.json          `Lease`: which process is writing here (a second one is refused)
    spec.yaml           the job as it runs, defaults filled in
    preflight.json      the operator's preflight verdict from before the chips were obtained
    lineage.json        versions, digests of data and other files, model revision, seed, image, changes between attempts
    progress.json       `Progress`, replaced atomically at most every few seconds: the operator's source
    metrics.jsonl       one object per step: step, time, and every metric
    samples/step-00000010.jsonl   prompts, completions, rewards, advantages
    non-finite/step-00000010.jsonl   the batch at which the run stopped (`batch_file`)
    judge/NAME/000001.jsonl   a judge's replies, so that no request is repeated
    tensorboard/        event files
    checkpoints/        Orbax, one directory per step; uncommitted ones do not count
    best.json           `Best`: the checkpoints that `checkpoint.best` keeps, the best first
    stacks/             stacks of all threads after a hang or SIGUSR1, per attempt and process
    heartbeats/         `Heartbeat` of every process, if there are several
    generation.json     `Generation`: on which slices the trainer runs now, with `accelerator.minSlices`
    rollouts/           finished rollouts since the newest checkpoint, one file a step, which a restart takes
    members/            `Member` of every supervisor of a trainer process, with `accelerator.minSlices`
    export/             the trained model in Hugging Face's layout, with a model card
    termination.json    `Termination` of the last attempt
    returned/UID-0      of `runtime.function`: what process 0 returned, or what a process raised (`ptapi.pickled`)
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from ptapi.status import PreflightStatus

OWNER = "owner.json"
LEASE = "lease.json"
SPEC = "spec.yaml"
PREFLIGHT = "preflight.json"
LINEAGE = "lineage.json"
PROGRESS = "progress.json"
METRICS = "metrics.jsonl"
TRACKING = "tracking.json"
SAMPLES = "samples"
ROLLOUTS = "rollouts"
JUDGE = "judge"
NON_FINITE = "non-finite"
TENSORBOARD = "tensorboard"
WANDB = "wandb"
TRACKIO = "trackio"
CHECKPOINTS = "checkpoints"
BEST = "best.json"
STACKS = "stacks"
HEARTBEATS = "heartbeats"
GENERATION = "generation.json"
EXPORT = "export"
CRITIC = "critic"
"""Directory in the export for the critic's weights, next to the policy's."""
TERMINATION = "termination.json"

VERDICTS = ".preflight"
"""Directory in `output.uri`, next to the runs: cached verdicts, so that a job of the same shapes compiles nothing."""

REQUIREMENTS = ".requirements"
"""Directory in `output.uri`: installed packages of functions, by the content of what was asked for."""
PACKED = ".packed"
"""Directory in `output.uri`: functions and arguments too large for a job, by their content."""

TERMINATION_LOG_ENV = "POSTTRAIN_TERMINATION_LOG"
"""Path of the file whose content becomes the container's termination message."""
RUN_DIRECTORY_ENV = "POSTTRAIN_RUN_DIRECTORY"
"""The run directory, for programs other than posttrain's trainer."""
PROGRESS_LOG_ENV = "POSTTRAIN_PROGRESS_IN_LOG"
"""`true`: the trainer repeats its progress document in the log, for an operator that cannot read the run directory."""
SANDBOXES_ENV = "POSTTRAIN_SANDBOXES"
"""Where the trainer finds the run's sandboxes: `host:port`, separated by commas; a host may have many addresses."""
SERVICES_ENV = "POSTTRAIN_SERVICES"
"""Where the trainer finds the job's services: a JSON object, by name a list of base URLs, one per replica in order."""
JOB_FILE = "/etc/posttrain/job.yaml"
"""Where the operator mounts the job in the trainer's pod."""


def returned(uid: str, process: int | str) -> str:
    """Return the name of the file with what a process of a function's job returned or raised."""
    return f"returned/{uid or 'local'}-{process}"


def run_uri(output_uri: str, job_name: str) -> str:
    """Return the run directory of a job: `<output.uri>/<job name>`."""
    return f"{output_uri.rstrip('/')}/{job_name}"


def is_of_machine(metric: str) -> bool:
    """Return True if a metric measures the machine or its clock: only such metrics differ when a run is repeated."""
    named = (
        TOKENS_PER_SECOND,
        TRAINED_TOKENS_PER_SECOND,
        TOKENS_PER_SECOND_OF_TRAINING,
        STEP_SECONDS,
        MFU,
        GOODPUT,
        HBM_IN_USE,
        DUTY_CYCLE,
        HOST_MEMORY,
        SYNC_BYTES,
    )
    return metric in ("time", "sampled_tokens_per_second", *named) or metric.startswith((SECONDS, WEIGHTS, SAMPLERS))


def sample_file(step: int) -> str:
    """Return the path of a step's samples, relative to the run directory."""
    return f"{SAMPLES}/step-{step:08d}.jsonl"


def rollout_file(step: int) -> str:
    """Return the path of the finished rollout of the step after `step` steps, relative to the run directory."""
    return f"{ROLLOUTS}/step-{step:08d}.json"


def batch_file(step: int) -> str:
    """Return the path of the batch that stopped the run as not finite, relative to the run directory.

    One line per row: row, text (of each example), tokens, targets, positions, segment_ids, mask, weight, and the other
    fields of the algorithm's batches; non-finite numbers are written as the strings nan, inf and -inf.
    """
    return f"{NON_FINITE}/step-{step:08d}.jsonl"


def stack_file(attempt: int, process: int) -> str:
    """Return the path of the stacks of one process and attempt, relative to the run directory."""
    return f"{STACKS}/attempt-{attempt}-process-{process:04d}.txt"


def heartbeat_file(process: int) -> str:
    """Return the path of a process's heartbeat, relative to the run directory."""
    return f"{HEARTBEATS}/process-{process:04d}.json"


def member_file(slice_index: int, process: int) -> str:
    """Return the path of what the supervisor of a slice's process reports, relative to the run directory."""
    return f"members/slice-{slice_index:03d}-process-{process:04d}.json"


class Document(BaseModel):
    """A JSON document in the run directory, with camelCase keys.

    Unknown keys are ignored, so that an older reader copes with a newer writer.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)


class Owner(Document):
    """The job that owns a run directory. Jobs are the same if their uids are equal or, without uids, their names."""

    name: str
    namespace: str = ""
    uid: str = ""


class Lease(Document):
    """Which process writes to a run directory.

    The holder has the lease while its heartbeat changes, and for `limit_seconds` after; times are RFC 3339.
    """

    holder: str = "an unknown process"
    """Description for people."""
    host: str = ""
    boot: str = ""
    """Kernel's identifier of the host's current boot; with `pidNamespace` it says where `pid` is valid."""
    pid_namespace: str = ""
    pid: int = 0
    process_started: int = 0
    """In clock ticks since that boot: process numbers are reused."""
    name: str = ""
    namespace: str = ""
    uid: str = ""
    """The job's uid."""
    attempt: int = 1
    token: str = ""
    """Unique to each process that ever held the lease."""
    acquired: str = ""
    heartbeat: str = ""
    renewals: int = 0
    limit_seconds: float = 30.0
    released: str = ""
    """When the holder released the lease; empty while it holds it."""


Stage = Literal["loading", "compiling", "restoring", "training", "evaluating", "saving", "exporting", "done"]


class CheckpointRef(Document):
    """The newest committed checkpoint; time is RFC 3339."""

    step: int
    uri: str
    time: str


class BestRef(Document):
    """A checkpoint that an evaluation ranked among the best."""

    step: int
    value: float


class Best(Document):
    """The checkpoints kept by `checkpoint.best`, the best first."""

    metric: str
    mode: Literal["min", "max"]
    checkpoints: list[BestRef] = []


class TimeSplit(Document):
    """Seconds spent, summed over all attempts."""

    loading: float = 0.0
    compiling: float = 0.0
    restoring: float = 0.0
    training: float = 0.0
    evaluating: float = 0.0
    saving: float = 0.0
    restarting: float = 0.0
    """Between the last report of an attempt and the first of the next one, by the wall clock."""
    repeated: float = 0.0
    """Part of `training`: steps after the checkpoint from which a later attempt went on."""
    fewer_slices: float = 0.0
    """Part of `training`: on fewer slices than the job has."""


class SlicesProgress(Document):
    """The slices on which the trainer runs, with `accelerator.minSlices`."""

    present: list[int]
    total: int
    generation: int = 1
    restarts: dict[str, int] = {}
    """As in `Generation`."""


class Progress(Document):
    """The state of the run. `updated` (RFC 3339) is its heartbeat; eta and rates are in seconds."""

    job_uid: str = ""
    attempt: int = 1
    stage: Stage = "loading"
    step: int = 0
    total_steps: int = 0
    seconds_per_step: float | None = None
    eta_seconds: float | None = None
    metrics: Annotated[dict[str, float], Field(max_length=256)] = {}
    checkpoint: CheckpointRef | None = None
    best: BestRef | None = None
    time: TimeSplit = TimeSplit()
    slices: SlicesProgress | None = None
    started: str = ""
    """When the first attempt began (RFC 3339)."""
    goodput: float | None = None
    """Share of the time since then that was spent in training steps; all attempts and the pauses between them count."""
    updated: str = ""


class Heartbeat(Document):
    """The state of one process of the run at `updated` (RFC 3339). host: name of its host, which is its pod's."""

    process: int
    host: str = ""
    attempt: int = 1
    stage: Stage = "loading"
    step: int = 0
    updated: str = ""


class Member(Document):
    """What the supervisor of one trainer process reports; it is alive while `beats` changes.

    generation: of its trainer, or the one that it is ready to start; code: the exit code of a trainer that has ended.
    """

    token: str
    """Unique to each supervisor that ever ran."""
    address: str = ""
    """`host:port` at which JAX's coordinator would listen, if this process became the first."""
    beats: int = 0
    generation: int = 0
    state: Literal["idle", "ready", "running", "ended"] = "idle"
    code: int | None = None
    message: str = ""
    leaving: bool = False
    """It was told to stop, and ends with its trainer."""


class Generation(Document):
    """The trainer's processes from one restart to the next, on the slices that are there.

    Written by compare-and-set by one supervisor, the keeper, which is alive while `beats` changes.
    """

    number: int = 0
    job_uid: str = ""
    slices: list[int] = []
    """The slices that train, in the order of their process numbers; none while too few are there."""
    members: list[str] = []
    """Tokens of their supervisors, in the order of process numbers."""
    coordinator: str = ""
    started: bool = False
    """All members have ended their earlier trainer and are ready: they start the new one."""
    stopping: bool = False
    """The trainers save and end, so that the next generation has more slices."""
    verdict: int | None = None
    """The exit code with which the whole run ends."""
    message: str = ""
    restarts: dict[str, int] = {}
    """Generations that ended, by failure class; `Resized` counts those that made room for returned slices."""
    keeper: str = ""
    beats: int = 0


class Termination(Document):
    """Why an attempt ended: also the pod's termination message, as one line of JSON."""

    exit_code: int
    failure_class: str = ""
    message: str = ""
    step: int = 0
    preflight: PreflightStatus | None = None
    """The verdict, in a preflight pod's message."""
    staged: str | None = None
    """URI of the model's copy, in the message of a pod that staged it."""


# Keys of `Progress.metrics` and of metrics.jsonl that status, printer columns and ptctl refer to.
LOSS = "loss"
NLL = "nll"
PERPLEXITY = "perplexity"
ACCURACY = "accuracy"
REWARD = "reward"
KL = "kl"
ENTROPY = "entropy"
COMPLETION_LENGTH = "completion_length"
STALENESS = "staleness"
"""Optimizer steps between the weights that a batch was sampled with and those that its first update changes."""
TOKENS_PER_SECOND = "tokens_per_second"
TRAINED_TOKENS_PER_SECOND = "trained_tokens_per_second"
TOKENS_PER_SECOND_OF_TRAINING = "tokens_per_second/train"
STEP_SECONDS = "step_seconds"
MFU = "mfu"
GOODPUT = "goodput"
HBM_IN_USE = "hbm_in_use"
DUTY_CYCLE = "duty_cycle"
"""Share of recent time in which the first process's chips compute, as libtpu measures it."""
HOST_MEMORY = "host_memory"
SYNC_BYTES = "sync/bytes"
"""Bytes of weights moved to the sampling devices; a resumed run moves the constant ones once more."""
WEIGHTS = "weights/"
"""Prefix of what was sent to samplers with pods of their own."""
WEIGHT_BYTES = f"{WEIGHTS}bytes"
"""Bytes of weights sent to all samplers in a step."""
WEIGHT_CHANGES = f"{WEIGHTS}changed_share"
"""Share of the moving weights that differ, in the sampler's number format, from the version before."""
WEIGHT_SECONDS = f"{WEIGHTS}seconds"
SAMPLERS = "samplers/"
"""Prefix of what happened to samplers with pods of their own: how many were away, and what was drawn again."""
SECONDS = "seconds/"
"""Prefix of metrics that are parts or percentiles of a step's seconds."""
GRAD_NORM = "grad_norm"
LEARNING_RATE = "learning_rate"
SKIPPED_STEPS = "skipped_steps"
"""Steps so far that were skipped because loss or gradient was not finite."""
FAILED_STEPS = "failed_steps"
"""Steps so far that could not learn: the skipped ones, and those without rewards or trainable tokens."""
EVAL_LOSS = "eval/loss"
EVAL_REWARD = "eval/reward"
"""Mean reward of greedy completions of `data.eval`; with `gsm8k` as the only reward this is the accuracy."""
