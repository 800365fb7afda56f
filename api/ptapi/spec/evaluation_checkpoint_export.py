"""When the run looks at itself, saves itself, and what it leaves behind."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ptapi.spec.base import NonNegativeInt, OutputUri, PositiveInt, SpecModel


class Evaluation(SpecModel):
    """Evaluation on `data.eval`: loss for sft, rewards of greedy samples for grpo, and for sft that names rewards or
    `answers`."""

    every_steps: NonNegativeInt = 0
    """Evaluate every N steps; 0: only as `atStart` and `atEnd` say."""
    at_start: bool = True
    """Evaluate before the first step: without it nobody knows what training changed."""
    at_end: bool = True
    """Evaluate after the last step."""
    batch_size: PositiveInt = 64
    """Rows evaluated at once."""
    max_new_tokens: PositiveInt | None = None
    """Longest greedy completion. Unset: `rollout.maxNewTokens`."""
    samples: Annotated[int, Field(ge=1, le=1024)] = 1
    """More than 1: also sample so many completions of each prompt as the rollout does, and log `eval/pass@1` and
    `eval/pass@k` for k = 2, 4, … up to this."""
    pass_mark: Annotated[float, Field(ge=-1000.0, le=1000.0)] = 1.0
    """A completion passes when the job's first reward gives it at least this."""
    answers: Annotated[list[Literal["exactMatch", "accuracy", "macroF1"]], Field(max_length=3)] = []
    """What to measure of greedy answers against the gold answer of each row, or what the assistant says last in it.
    Texts are compared trimmed, white space as one space, case folded; accuracy and macroF1 compare labels."""
    labels: Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=1000)] = []
    """The labels that an answer may be. Unset: the gold answers that occur."""


class BestCheckpoints(SpecModel):
    """Checkpoints that stay because an evaluation found them good."""

    metric: Annotated[str, Field(pattern=r"^eval/\S+$", max_length=200)] = "eval/loss"
    """The evaluation's metric that decides, as `metrics.jsonl` names it."""
    mode: Literal["min", "max"] = "min"
    """Which value is better: the smaller or the larger."""
    keep: PositiveInt = 1
    """How many of them stay, beside the newest ones."""


class Fork(SpecModel):
    """A checkpoint of another run to begin from. `model.uri` stays: it says what the weights belong to."""

    uri: OutputUri
    """A run directory (its newest checkpoint), or `<run>/checkpoints/<step>`."""
    state: Literal["weights", "full"] = "weights"
    """`weights` begins at step 0 with a fresh optimizer and the data's first row; `full` goes on where that
    checkpoint was: same step, optimizer and position in the data."""


class Checkpoint(SpecModel):
    """Saved state to resume from."""

    every_steps: PositiveInt = 50
    """Save every N steps, and at the end, and on SIGTERM."""
    every_seconds: PositiveInt | None = None
    """Also save when this long has passed since the last save began: it bounds what a preemption costs, whatever a
    step takes. Unset: steps alone decide."""
    keep: PositiveInt = 2
    """How many of the newest checkpoints stay."""
    keep_every_steps: PositiveInt | None = None
    """Checkpoints whose step is a multiple of this stay for ever. Unset: none."""
    best: BestCheckpoints | None = None
    """Save after an evaluation that is among the best, and keep those. Unset: the newest alone stay."""
    fork: Fork | None = None
    """Begin from a checkpoint of another run. Unset: from `model.uri`."""
    resume: Literal["auto", "never"] = "auto"
    """`auto` continues from the newest good checkpoint of this job's run directory. `never` refuses a directory that
    holds a run already, so that what was interrupted stays so, until it is started over on purpose."""


class Export(SpecModel):
    """The trained model as others can load it."""

    format: Literal["safetensors", "peft", "none"] = "safetensors"
    """Hugging Face safetensors; `peft` (an adapter) needs `training.lora`."""
    merge_lora: bool = True
    """Adapters are merged into the weights of a `safetensors` export; `format: peft` writes them alone, whatever this
    says."""
    checkpoint: Literal["last", "best"] = "last"
    """Which weights: those after the last step, or those of the best evaluation (needs `checkpoint.best`)."""


class Output(SpecModel):
    """Where results go."""

    uri: OutputUri
    """`gs://` or `file://` directory; the job writes to `<uri>/<job name>/`."""


class Tensorboard(SpecModel):
    """TensorBoard files in the run directory."""

    enabled: bool = True
    """Write them."""
    server: bool = False
    """Also serve TensorBoard in the cluster, one for all jobs of the namespace with this `output.uri`, which must be a
    bucket. It has a pod only while somebody looks: `ptctl workload tensorboard NAME`."""


class RunPolicy(SpecModel):
    """Limits and lifecycle of the run."""

    suspend: bool = False
    """Stop the pods (after a checkpoint) and hold no chips until this is false again."""
    max_restarts: NonNegativeInt = 3
    """Restarts after failures that may be the job's own; preemption and maintenance are not charged."""
    ttl_seconds_after_finished: NonNegativeInt | None = None
    """Delete the job this long after it finished. Unset: keep it."""
    active_deadline_seconds: PositiveInt | None = None
    """Fail the job when it has been active for this long. Unset: no limit."""
    termination_grace_period_seconds: NonNegativeInt = 300
    """Time between SIGTERM and SIGKILL; enough to save a checkpoint."""
    hang_timeout_seconds: PositiveInt | None = None
    """No step for this long is a hang; waiting for rewards and environments, which have limits of their own, is none.
    Unset: the larger of 10 minutes and 5 × the median step."""
