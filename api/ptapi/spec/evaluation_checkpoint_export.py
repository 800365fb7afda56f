"""Evaluation, checkpoints, export, output and lifecycle of a run."""

from typing import Annotated, Literal

from pydantic import Field

from ptapi.spec.base import NonNegativeInt, OutputUri, PositiveInt, SpecModel


class Evaluation(SpecModel):
    """Evaluation on `data.eval`: the loss for sft, rewards of greedy samples for grpo.

    sft with rewards or `answers` is evaluated on greedy samples, too.
    """

    every_steps: NonNegativeInt = 0
    """Evaluate every N steps; 0: only as set by `atStart` and `atEnd`."""
    at_start: bool = True
    """Evaluate before the first step, as the baseline for what training changes."""
    at_end: bool = True
    """Evaluate after the last step."""
    batch_size: PositiveInt = 64
    """Rows evaluated at once."""
    max_new_tokens: PositiveInt | None = None
    """Longest greedy completion. Unset: `rollout.maxNewTokens`."""
    samples: Annotated[int, Field(ge=1, le=1024)] = 1
    """Above 1: also sample this many completions of each prompt with the rollout's settings, and log `eval/pass@1` and
    `eval/pass@k` for k = 2, 4, … up to this number."""
    pass_mark: Annotated[float, Field(ge=-1000.0, le=1000.0)] = 1.0
    """A completion passes if the job's first reward is at least this."""
    answers: Annotated[list[Literal["exactMatch", "accuracy", "macroF1"]], Field(max_length=3)] = []
    """Metrics of greedy answers against each row's gold answer, or else its last assistant message. Texts are compared
    trimmed, with white space collapsed and case folded; accuracy and macroF1 compare labels."""
    labels: Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=1000)] = []
    """The possible labels. Unset: all gold answers of the data."""


class BestCheckpoints(SpecModel):
    """Checkpoints kept because of their evaluation."""

    metric: Annotated[str, Field(pattern=r"^eval/\S+$", max_length=200)] = "eval/loss"
    """The evaluation metric that decides, by its name in `metrics.jsonl`."""
    mode: Literal["min", "max"] = "min"
    """Whether smaller or larger values are better."""
    keep: PositiveInt = 1
    """How many of them to keep, in addition to the newest ones."""


class Fork(SpecModel):
    """A checkpoint of another run to start from. `model.uri` is still required: it names the model of the weights."""

    uri: OutputUri
    """A run directory (its newest checkpoint), or `<run>/checkpoints/<step>`."""
    state: Literal["weights", "full"] = "weights"
    """`weights` starts at step 0 with a new optimizer and the data's first row; `full` continues at that checkpoint's
    step, optimizer state and position in the data."""


class Checkpoint(SpecModel):
    """Saved state to resume from."""

    every_steps: PositiveInt = 50
    """Save every N steps, and at the end, and on SIGTERM."""
    every_seconds: PositiveInt | None = None
    """Also save when this long has passed since the last save started: it limits the work that a preemption loses,
    however long a step takes. Unset: only `everySteps` applies."""
    keep: PositiveInt = 2
    """How many of the newest checkpoints to keep."""
    keep_every_steps: PositiveInt | None = None
    """Keep every checkpoint whose step is a multiple of this. Unset: none."""
    best: BestCheckpoints | None = None
    """Save after an evaluation among the best, and keep those checkpoints. Unset: keep only the newest."""
    fork: Fork | None = None
    """Start from a checkpoint of another run. Unset: from `model.uri`."""
    resume: Literal["auto", "never"] = "auto"
    """`auto` continues from the newest good checkpoint of this job's run directory. `never` refuses a directory that
    already holds a run, so that an interrupted run resumes only on purpose."""


class Export(SpecModel):
    """The trained model, in a format that other programs load."""

    format: Literal["safetensors", "peft", "none"] = "safetensors"
    """Hugging Face safetensors; `peft` (an adapter) needs `training.lora`."""
    merge_lora: bool = True
    """Merge adapters into the weights of a `safetensors` export. `format: peft` writes only the adapters and ignores
    this field."""
    checkpoint: Literal["last", "best"] = "last"
    """The exported weights: after the last step, or of the best evaluation (needs `checkpoint.best`)."""


class Output(SpecModel):
    """Where results go."""

    uri: OutputUri
    """`gs://` or `file://` directory; the job writes to `<uri>/<job name>/`."""


class Tensorboard(SpecModel):
    """TensorBoard files in the run directory."""

    enabled: bool = True
    """Write TensorBoard files."""
    server: bool = False
    """Also serve TensorBoard in the cluster, one for all jobs of the namespace with this `output.uri`, which must be a
    bucket. It has a pod only while somebody uses it: `ptctl workload tensorboard NAME`."""


class RunPolicy(SpecModel):
    """Limits and lifecycle of the run."""

    suspend: bool = False
    """Save a checkpoint, stop the pods and release the chips until this is false again."""
    max_restarts: NonNegativeInt = 3
    """Restarts after failures that may be the job's own; preemption and maintenance do not count."""
    ttl_seconds_after_finished: NonNegativeInt | None = None
    """Delete the job this long after it finished. Unset: keep it."""
    active_deadline_seconds: PositiveInt | None = None
    """Fail the job when it has been active for this long. Unset: no limit."""
    termination_grace_period_seconds: Annotated[int, Field(ge=0, le=86_400)] = 300
    """Time between SIGTERM and SIGKILL: enough to save a checkpoint."""
    hang_timeout_seconds: PositiveInt | None = None
    """The run hangs if no step finishes for this long; waiting for rewards and environments, which have their own
    limits, does not count. Unset: the larger of 10 minutes and 5 × the median step."""
