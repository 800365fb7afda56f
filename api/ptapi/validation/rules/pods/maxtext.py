"""Rules for jobs of `runtime.maxtext`: they may set what MaxText's commands have arguments for, and nothing else.

The operator renders the fields in `RENDERED` as MaxText's arguments; every other field about training must be at its
default, because a setting that nothing obeys is worse than none. A default that is not rendered is MaxText's own. Left
out: the arguments themselves (`ptoperator.render.pods.maxtext_command`), and which of them a version of MaxText takes.
"""

from collections.abc import Iterator

from pydantic import BaseModel

from ptapi.accelerators import resolve
from ptapi.accelerators.table import is_gpu_type
from ptapi.errors import Finding, SpecError
from ptapi.spec import PostTrainJobSpec
from ptapi.validation.rule import displayed

_SECTIONS = ("model", "algorithm", "data", "rewards", "training", "rollout", "evaluation", "checkpoint", "export",
             "tensorboard")  # fmt: skip
_BOTH = {
    "model.uri", "model.tokenizer", "model.tokenSecretRef", "data.train.uri", "data.train.split",
    "data.eval.uri", "data.eval.split", "training.steps", "training.batchSize", "training.microBatchSize",
    "training.sequenceLength", "training.seed", "training.optimizer.learningRate", "training.optimizer.beta1",
    "training.optimizer.beta2", "training.optimizer.weightDecay", "training.optimizer.maxGradNorm",
    "training.schedule.warmupFraction", "evaluation.everySteps", "checkpoint.everySteps",
}  # fmt: skip
RENDERED: dict[str, set[str]] = {
    "sft": _BOTH | {
        "algorithm.sft.lossOnPrompt", "algorithm.sft.packing", "training.optimizer.eps",
        "training.schedule.finalFraction", "training.parallelism.data", "training.parallelism.fsdp",
        "training.parallelism.tensor", "training.parallelism.expert", "data.train.columns.messages",
        "data.train.columns.prompt", "data.train.columns.completion",
    },
    "grpo": _BOTH | {
        "algorithm.grpo.loss", "algorithm.grpo.groupSize", "algorithm.grpo.beta", "algorithm.grpo.clipLow",
        "algorithm.grpo.updatesPerBatch", "rewards", "rollout.maxNewTokens", "rollout.temperature", "rollout.topP",
        "rollout.topK", "data.eval.limit", "evaluation.batchSize", "checkpoint.keep",
    },
}  # fmt: skip
"""Fields of spec that become arguments of train_sft and of train_rl, by algorithm."""
RESERVED_KEYS = ("run_name", "base_output_directory", "hf_access_token")
"""Keys that `args` may not hold: the operator names the run directory, and a token is not an argument."""


def check_maxtext(spec: PostTrainJobSpec) -> list[Finding]:
    """Return what MaxText cannot do of a job."""
    runtime = spec.runtime.maxtext
    if runtime is None:
        return []
    if is_gpu_type(spec.accelerator.type):
        accepted = "a TPU, because runtime.maxtext starts MaxText with its image and settings for TPUs"
        return [Finding("spec.accelerator.type", spec.accelerator.type, accepted, "leave runtime.maxtext out")]
    kind = spec.algorithm.kind
    if kind not in RENDERED:
        return [Finding("spec.algorithm", kind, "sft or grpo, because those are what posttrain starts MaxText for")]
    return [*_not_rendered(spec, RENDERED[kind]), *_reserved_keys(runtime.args), *_common(spec), *_reinforcement(spec)]


def _not_rendered(spec: PostTrainJobSpec, rendered: set[str]) -> Iterator[Finding]:
    for section in _SECTIONS:
        for path, value in _changed(spec, section):
            if path not in rendered:
                accepted = "its default, because runtime.maxtext has no word for it"
                yield Finding(f"spec.{path}", displayed(value), accepted, "runtime.maxtext.args: [key=value]")


def _changed(model: BaseModel, only: str = "", path: str = "") -> Iterator[tuple[str, object]]:
    """Yield the fields below a model, at any depth, that are not at their defaults."""
    for name, field in type(model).model_fields.items():
        value, default = getattr(model, name), field.get_default(call_default_factory=True)
        if value == default or (only and field.alias != only):
            continue
        field_path = f"{path}{field.alias}"
        if isinstance(value, BaseModel) and type(value).model_fields and field_path != "model.tokenSecretRef":
            yield from _changed(value, path=f"{field_path}.")
        else:
            yield field_path, value


def _reserved_keys(args: list[str]) -> Iterator[Finding]:
    for index, argument in enumerate(args):
        key = argument.partition("=")[0]
        if key in RESERVED_KEYS:
            hint = "model.tokenSecretRef: {name: …}" if key == "hf_access_token" else "metadata.name, output.uri"
            accepted = f"no {key}, which the job itself says"
            yield Finding(f"spec.runtime.maxtext.args[{index}]", f"{key}=(not shown)", accepted, hint)


def _common(spec: PostTrainJobSpec) -> Iterator[Finding]:
    if spec.training.steps is None:
        yield Finding("spec.training.steps", "(missing)", "a number, because MaxText counts steps and no epochs")
    if not spec.model.uri.startswith("gs://"):
        hint = "python3 -m maxtext.checkpoint_conversion.to_maxtext makes one of a Hugging Face model"
        yield Finding("spec.model.uri", spec.model.uri, "gs://…/0/items, a MaxText checkpoint", hint)
    evaluation = spec.data.eval
    if spec.algorithm.sft and evaluation is not None and _source(evaluation.uri) != _source(spec.data.train.uri):
        yield Finding("spec.data.eval.uri", evaluation.uri, "the data set of data.train, or files of its kind")


def _source(uri: str) -> str:
    """Return the data set of a hub URI, or the extension of a file."""
    return "/".join(uri.split("/")[:5]) if uri.startswith("hf://") else uri.rpartition(".")[2]


def _hosts(spec: PostTrainJobSpec) -> int:
    try:
        accelerator = resolve(spec.accelerator.type, spec.accelerator.topology, spec.accelerator.slices)
    except SpecError:
        return 0  # its own rule refuses it
    return accelerator.total_vms


def _reinforcement(spec: PostTrainJobSpec) -> Iterator[Finding]:
    grpo = spec.algorithm.grpo
    if grpo is None:
        return
    if grpo.loss not in ("grpo", "gspo-token"):
        yield Finding("spec.algorithm.grpo.loss", grpo.loss, "grpo or gspo-token, the losses of MaxText's train_rl")
    if spec.training.steps is not None and spec.training.steps % grpo.updates_per_batch:
        accepted = "a multiple of algorithm.grpo.updatesPerBatch, because MaxText counts batches"
        yield Finding("spec.training.steps", str(spec.training.steps), accepted)
    if [reward.model_dump(exclude_defaults=True) for reward in spec.rewards] != [{"builtin": "gsm8k"}]:
        accepted = "[{builtin: gsm8k}], which stands for MaxText's own rewards of format and answer"
        hint = "runtime.maxtext.args: [reward_functions_path=…, reward_functions=…] replaces them"
        yield Finding("spec.rewards", displayed(spec.rewards), accepted, hint)
    for name, data in (("train", spec.data.train), ("eval", spec.data.eval)):
        if data is not None and not data.uri.startswith("hf://datasets/"):
            yield Finding(f"spec.data.{name}.uri", data.uri, "hf://datasets/organisation/name, where train_rl reads")
    if spec.data.eval is not None and spec.data.eval.limit is None:
        yield Finding("spec.data.eval.limit", "(missing)", "a number of rows, because MaxText counts batches of them")
    if _hosts(spec) > 1 and spec.pathways.enabled is not True:
        yield Finding("spec.pathways.enabled", displayed(spec.pathways.enabled),
                      "true, because train_rl runs on several hosts with Pathways alone")  # fmt: skip
