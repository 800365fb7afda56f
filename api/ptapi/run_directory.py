"""The run directory: where the trainer writes and everybody else reads, the same on `gs://` and `file://`.

<output.uri>/<job name>/
    owner.json          which job owns this directory (another job is refused)
    lease.json          `Lease`: which process writes here now (a second one is refused)
    spec.yaml           the job as it runs, defaults filled in
    preflight.json      whether the job fits its chips, as the operator's preflight found before they were obtained
    lineage.json        versions, digests of data and other files, model revision, seed, image, changes between attempts
    progress.json       `Progress`, replaced atomically at most every few seconds: the operator's source
    metrics.jsonl       one object a step: step, time, and every metric
    samples/step-00000010.jsonl   prompts, completions, rewards, advantages
    non-finite/step-00000010.jsonl   the batch at which the run gave up (`batch_file`)
    judge/NAME/000001.jsonl   replies of a reward's judge, so that nothing is asked twice
    tensorboard/        event files
    checkpoints/        Orbax, one directory a step; one that is not committed does not count
    best.json           `Best`: the checkpoints that `checkpoint.best` keeps, the best first
    stacks/             stacks of all threads, per attempt and process: what a hang or SIGUSR1 left
    heartbeats/         `Heartbeat` of every process, where there are several
    export/             the trained model in Hugging Face's layout
    termination.json    `Termination` of the last attempt
"""

from __future__ import annotations

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
SAMPLES = "samples"
JUDGE = "judge"
NON_FINITE = "non-finite"
TENSORBOARD = "tensorboard"
CHECKPOINTS = "checkpoints"
BEST = "best.json"
STACKS = "stacks"
HEARTBEATS = "heartbeats"
EXPORT = "export"
CRITIC = "critic"
"""In the export of a run with one: its weights, apart from the policy's."""
TERMINATION = "termination.json"

VERDICTS = ".preflight"
"""Directory in `output.uri`, beside the runs: verdicts of before, so that a job of the same shapes compiles nothing."""

TERMINATION_LOG_ENV = "POSTTRAIN_TERMINATION_LOG"
"""Names the file whose content becomes the container's termination message."""
RUN_DIRECTORY_ENV = "POSTTRAIN_RUN_DIRECTORY"
"""Names the run directory to programs that are not posttrain's trainer."""
JOB_FILE = "/etc/posttrain/job.yaml"
"""Where the operator mounts the job in the trainer's pod."""


def run_uri(output_uri: str, job_name: str) -> str:
    """The run directory of a job: `<output.uri>/<job name>`."""
    return f"{output_uri.rstrip('/')}/{job_name}"


def is_of_machine(metric: str) -> bool:
    """Whether a metric speaks of the machine and its clock: a run done again has others there, and nowhere else."""
    named = (
        TOKENS_PER_SECOND,
        TRAINED_TOKENS_PER_SECOND,
        TOKENS_PER_SECOND_OF_TRAINING,
        STEP_SECONDS,
        MFU,
        GOODPUT,
        HBM_IN_USE,
        HOST_MEMORY,
        SYNC_BYTES,
    )
    return metric in ("time", "sampled_tokens_per_second", *named) or metric.startswith(SECONDS)


def sample_file(step: int) -> str:
    """The sample table of a step, relative to the run directory."""
    return f"{SAMPLES}/step-{step:08d}.jsonl"


def batch_file(step: int) -> str:
    """The batch of the last of too many steps whose loss or gradient was not finite, relative to the run directory.

    One line per row: row, text (of each example), tokens, targets, positions, segment_ids, mask, weight, and what else
    the algorithm's batches hold; numbers that are not finite are the texts nan, inf and -inf.
    """
    return f"{NON_FINITE}/step-{step:08d}.jsonl"


def stack_file(attempt: int, process: int) -> str:
    """The stacks that a process of an attempt wrote, relative to the run directory."""
    return f"{STACKS}/attempt-{attempt}-process-{process:04d}.txt"


def heartbeat_file(process: int) -> str:
    """The last sign of life of a process, relative to the run directory."""
    return f"{HEARTBEATS}/process-{process:04d}.json"


class Document(BaseModel):
    """A JSON document in the run directory: camelCase outside. Unknown keys are ignored, so that an older
    reader copes with a newer writer."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)


class Owner(Document):
    """Who owns a run directory. Two jobs are the same when uid is equal, or, where neither has one, name is."""

    name: str
    namespace: str = ""
    uid: str = ""


class Lease(Document):
    """Which process writes in a run directory. It is the holder's as long as its heartbeat changes, and for so many
    seconds after; times are RFC 3339."""

    holder: str = "an unknown process"
    """For people."""
    host: str = ""
    boot: str = ""
    """Kernel's identifier of the host's current boot; with `pidNamespace` it says where `pid` means something."""
    pid_namespace: str = ""
    pid: int = 0
    process_started: int = 0
    """In clock ticks since that boot: a process number is given out again."""
    name: str = ""
    namespace: str = ""
    uid: str = ""
    """Of the job."""
    attempt: int = 1
    token: str = ""
    """Another one for each process that ever held the lease."""
    acquired: str = ""
    heartbeat: str = ""
    renewals: int = 0
    limit_seconds: float = 30.0
    released: str = ""
    """When the holder ended; empty while it holds the lease."""


Stage = Literal["loading", "compiling", "restoring", "training", "evaluating", "saving", "exporting", "done"]


class CheckpointRef(Document):
    """The newest committed checkpoint; time is RFC 3339."""

    step: int
    uri: str
    time: str


class BestRef(Document):
    """A checkpoint that an evaluation found good."""

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


class Progress(Document):
    """What the run is doing. `updated` (RFC 3339) is its heartbeat; eta and rates are in seconds."""

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
    started: str = ""
    """When the first attempt began (RFC 3339)."""
    goodput: float | None = None
    """Share of the time since then that went into training steps, all attempts and pauses between them counted."""
    updated: str = ""


class Heartbeat(Document):
    """What one process of the run was doing at `updated` (RFC 3339). host: its host's name, which is its pod's."""

    process: int
    host: str = ""
    attempt: int = 1
    stage: Stage = "loading"
    step: int = 0
    updated: str = ""


class Termination(Document):
    """Why an attempt ended: also the pod's termination message, as one line of JSON."""

    exit_code: int
    failure_class: str = ""
    message: str = ""
    step: int = 0
    preflight: PreflightStatus | None = None
    """Of preflight's pod: its verdict."""


# Keys of `Progress.metrics` and of metrics.jsonl that status, printer columns and ptctl know by name.
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
HOST_MEMORY = "host_memory"
SYNC_BYTES = "sync/bytes"
"""Weights that moved to the devices that sample; a run that comes back moves what never changes once more."""
SECONDS = "seconds/"
"""Begins the names of metrics that are parts or percentiles of a step's seconds."""
GRAD_NORM = "grad_norm"
LEARNING_RATE = "learning_rate"
SKIPPED_STEPS = "skipped_steps"
"""Steps so far whose loss or gradient was not finite: they changed nothing."""
FAILED_STEPS = "failed_steps"
"""Steps so far that could not learn: those that were skipped, and those whose rewards or tokens were missing."""
EVAL_LOSS = "eval/loss"
EVAL_REWARD = "eval/reward"
"""Mean reward of greedy completions of `data.eval`; with the one reward `gsm8k` this is the accuracy."""
