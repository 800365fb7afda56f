"""What of a job may change between two attempts of one run, field by field.

A run that comes back is the run that began, so whatever shapes its result is refused when it differs (`MEANING`), or is
decided by what the files hold that it names (`CONTENT`); its end may move, before it (`LENGTH`); the rest is how and
where it is computed, and what is kept and shown of it (`FREE`). The one idea: every field of the spec stands in
`GROUPS`, a test goes through all of them, and a field that is missing there would be refused.

Left out: the cluster, where nothing of a job changes after creation (`immutable`), and what files hold, which the
trainer compares.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple

from pydantic import ValidationError

from ptapi.errors import Finding, SpecError
from ptapi.load import manifest, without_nulls
from ptapi.spec import PostTrainJob, PostTrainJobSpec, Training
from ptapi.spec.openapi_schema import Schema, child, structural
from ptapi.text import kubectl_yaml
from ptapi.text.messages import shown
from ptapi.validation.parse_errors import translate


class Change(StrEnum):
    """What another value of a field means to a run that has begun."""

    MEANING = "refused"
    """The result would be another one."""
    CONTENT = "by content"
    """Where something is: the same content at another place is the same."""
    LENGTH = "above what is done"
    """How long the run is."""
    FREE = "may change"
    """Said in the log and in the lineage; the result is the same, at most to rounding."""


class Group(NamedTuple):
    """Fields that are alike, and why."""

    change: Change
    why: str
    fields: str


GROUPS = (
    Group(
        Change.LENGTH,
        "how long the run is, and the schedule with it: steps beyond the newest checkpoint, or more epochs",
        "training.steps training.epochs",
    ),
    Group(
        Change.CONTENT,
        "where rows, templates and code of yours are: what the files hold is compared",
        "data.train.uri data.train.revision data.eval.uri data.eval.revision model.revision model.chatTemplate "
        "rewards[].python.uri environment.tools[].python.uri environment.python.uri",
    ),
    Group(Change.MEANING, "the model that is trained, and its tokens", "model.uri model.tokenizer"),
    Group(
        Change.MEANING,
        "what is computed",
        "algorithm.sft.lossOnPrompt algorithm.sft.loss algorithm.sft.labelSmoothing algorithm.sft.zLoss "
        "algorithm.sft.packing "
        "algorithm.dpo.loss algorithm.dpo.beta algorithm.dpo.labelSmoothing algorithm.dpo.margin "
        "algorithm.grpo.loss algorithm.grpo.groupSize algorithm.grpo.advantage algorithm.grpo.combineRewards "
        "algorithm.grpo.clipLow algorithm.grpo.clipHigh algorithm.grpo.dualClip algorithm.grpo.beta algorithm.grpo.kl "
        "algorithm.grpo.updatesPerBatch algorithm.grpo.dynamicSampling.maxTries algorithm.grpo.overlong.bufferTokens "
        "algorithm.distill.mode algorithm.distill.teacher.uri algorithm.distill.teacher.revision "
        "algorithm.distill.selfTeacher.weights algorithm.distill.selfTeacher.privilegedContext algorithm.distill.beta "
        "algorithm.distill.studentShare algorithm.distill.topK "
        "algorithm.ppo.samplesPerPrompt algorithm.ppo.gamma algorithm.ppo.gaeLambda algorithm.ppo.clip "
        "algorithm.ppo.valueClip algorithm.ppo.valueCoefficient algorithm.ppo.klCoefficient "
        "algorithm.ppo.updatesPerBatch algorithm.ppo.whitenAdvantages algorithm.ppo.bootstrapTruncated "
        "algorithm.ppo.critic.kind algorithm.ppo.critic.uri algorithm.ppo.critic.revision "
        "algorithm.ppo.critic.learningRate",
    ),
    Group(
        Change.MEANING,
        "which rows there are and how they are read; held-out ones too, for a curve is about one set",
        "data.train.format data.train.columns.messages data.train.columns.prompt data.train.columns.completion "
        "data.train.columns.answer data.train.columns.chosen data.train.columns.rejected data.train.columns.text "
        "data.train.split data.train.limit "
        "data.eval.format data.eval.columns.messages data.eval.columns.prompt data.eval.columns.completion "
        "data.eval.columns.answer data.eval.columns.chosen data.eval.columns.rejected data.eval.columns.text "
        "data.eval.split data.eval.limit data.systemPrompt data.onBadRow",
    ),
    Group(
        Change.MEANING,
        "what a completion is worth; a limit of seconds decides which samples count",
        "rewards[].name rewards[].builtin rewards[].python.function rewards[].judge.url rewards[].judge.model "
        "rewards[].judge.prompt rewards[].judge.lowest rewards[].judge.highest rewards[].judge.maxTokens "
        "rewards[].weight rewards[].timeoutSeconds rewards[].pattern rewards[].batched rewards[].maxTokens "
        "rewards[].bufferTokens",
    ),
    Group(
        Change.MEANING,
        "what answers the model",
        "environment.tools[].builtin environment.tools[].python.function environment.python.className "
        "environment.toolFormat environment.maxTurns environment.maxObservationTokens environment.timeoutSeconds "
        "environment.rewardWeight",
    ),
    Group(
        Change.MEANING,
        "how weights are updated, and which; `precision.compute: auto` counts as what it comes to on the chips",
        "training.batchSize training.sequenceLength training.seed training.freeze training.ema.decay "
        "training.neftuneAlpha training.optimizer.name training.optimizer.learningRate training.optimizer.beta1 "
        "training.optimizer.beta2 training.optimizer.eps training.optimizer.weightDecay "
        "training.optimizer.maxGradNorm training.schedule.kind training.schedule.warmupFraction "
        "training.schedule.finalFraction training.lora.rank training.lora.alpha training.lora.targets "
        "training.lora.embeddings training.lora.rsLora training.lora.dropout training.lora.from "
        "training.quantization.weights training.precision.params training.precision.compute",
    ),
    Group(
        Change.MEANING,
        "from which distribution samples are drawn, and how old it may be; vLLM draws others than the native engine",
        "rollout.maxNewTokens rollout.temperature rollout.topP rollout.topK rollout.minP rollout.minNewTokens "
        "rollout.stop rollout.engine rollout.maxStaleness",
    ),
    Group(
        Change.MEANING,
        "what figures of an evaluation mean",
        "evaluation.maxNewTokens evaluation.passMark evaluation.labels",
    ),
    Group(Change.MEANING, "where the run began", "checkpoint.fork.uri checkpoint.fork.state"),
    Group(
        Change.MEANING,
        "another program in the trainer's place",
        "runtime.maxtext.modelName runtime.maxtext.args runtime.container.command runtime.container.args",
    ),
    Group(
        Change.FREE,
        "chips and layout: equal to rounding",
        "accelerator.type accelerator.slices accelerator.topology training.microBatchSize training.remat "
        "training.parallelism.data training.parallelism.fsdp training.parallelism.tensor training.parallelism.sequence "
        "training.parallelism.expert rollout.placement rollout.samplerShare evaluation.batchSize",
    ),
    Group(
        Change.FREE,
        "how fast the same samples come",
        "rollout.slots rollout.speculative.ngram.tokens rollout.speculative.ngram.longest "
        "rollout.speculative.draft.uri rollout.speculative.draft.revision rollout.speculative.draft.tokens "
        "rollout.vllm.endpoint rollout.vllm.model rollout.vllm.apiKeyEnv rollout.vllm.weightsDirectory "
        "rollout.vllm.concurrency rollout.vllm.timeoutSeconds rollout.vllm.retries rollout.vllm.tolerance "
        "rollout.vllm.memoryShare",
    ),
    Group(
        Change.FREE,
        "how a judge is reached and what it may cost",
        "rewards[].judge.concurrency rewards[].judge.retries rewards[].judge.apiKeyEnv rewards[].judge.budget.calls "
        "rewards[].judge.budget.tokens",
    ),
    Group(
        Change.FREE,
        "when the run looks at itself, and what it measures beside",
        "evaluation.everySteps evaluation.atStart evaluation.atEnd evaluation.samples evaluation.answers "
        "training.profile.start training.profile.steps tensorboard.enabled tensorboard.server",
    ),
    Group(
        Change.FREE,
        "what is kept and exported, and where the run directory lies",
        "checkpoint.everySteps checkpoint.everySeconds checkpoint.keep checkpoint.keepEverySteps "
        "checkpoint.best.metric checkpoint.best.mode checkpoint.best.keep checkpoint.resume export.format "
        "export.mergeLora export.checkpoint output.uri",
    ),
    Group(
        Change.FREE,
        "limits of the run",
        "training.maxNonFiniteSteps training.maxFailedSteps training.minLearningShare runPolicy.suspend "
        "runPolicy.maxRestarts runPolicy.ttlSecondsAfterFinished runPolicy.activeDeadlineSeconds "
        "runPolicy.terminationGracePeriodSeconds runPolicy.hangTimeoutSeconds",
    ),
    Group(
        Change.FREE,
        "how chips and pods are obtained",
        "capacity[].type capacity[].reservation capacity[].waitSeconds capacity[].zones preflight queue "
        "queuePriorityClassName priorityClassName pathways.enabled pathways.headless pathways.elasticSlices "
        "pathways.serverImage pathways.proxyImage pathways.colocatedPythonImage pathways.serverArgs pathways.proxyArgs "
        "pathways.workerArgs",
    ),
    Group(
        Change.FREE,
        "what is in the pod",
        "image imagePullSecrets env[].name env[].value env[].valueFrom.secretKeyRef.name "
        "env[].valueFrom.secretKeyRef.key volumes[].name volumes[].mountPath volumes[].readOnly "
        "volumes[].configMap.name volumes[].secret.secretName volumes[].persistentVolumeClaim.claimName "
        "volumes[].emptyDir serviceAccountName runtime.native model.tokenSecretRef.name model.tokenSecretRef.key",
    ),
)

STEPS = "spec.training.steps"
UNSET = "unset"
HIDDEN = "(not shown)"
LONGEST = 1024
"""Of a text that is shown whole: as long as a URI may be."""
SECRETIVE = "env["
"""The field whose values may be secrets: they are not repeated anywhere."""


class Difference(NamedTuple):
    """A field that is not what the run has had. field: from `spec` on; was, now: as a person reads them; note: what
    follows from it."""

    field: str
    was: str
    now: str
    change: Change
    note: str = ""

    def __str__(self) -> str:
        return f"{self.field}: was {self.was}, is {self.now}{self.note}"


@cache
def changes() -> dict[str, Change]:
    """What a change means, by the field's name without numbers: `rewards[].weight`."""
    return {name: group.change for group in GROUPS for name in group.fields.split()}


def leaves(schema: Schema, path: str) -> Iterator[str]:
    """The fields below a field that hold values, by name."""
    below = schema.get("properties") or schema.get("items", {}).get("properties")
    if not below:
        yield path
        return
    start = f"{path}[]." if "items" in schema else f"{path}." if path else ""
    for name, field in below.items():
        yield from leaves(field, f"{start}{name}")


def differences(before: PostTrainJob, now: PostTrainJob) -> list[Difference]:
    """All that differs between a job as it ran and as it is; defaults are filled in, so they count as what they are."""
    schema = structural(PostTrainJobSpec)
    return list(_differing(schema, _resolved(before), _resolved(now), "", ""))


def read_job(content: bytes) -> tuple[PostTrainJob, list[Difference]]:
    """The job that a run directory's spec.yaml holds, whatever version of posttrain wrote it: fields that came later
    have their defaults, and those that there are no more are differences. Raises SpecError."""
    try:
        document = kubectl_yaml.read(content.decode())
    except UnicodeDecodeError:
        raise SpecError([Finding("job", "", "is not UTF-8 text")]) from None
    if not isinstance(document, dict):
        raise SpecError([Finding("job", shown(document), "is not a job")])
    gone: list[Difference] = []
    document = without_nulls(document)
    document["spec"] = _known(structural(PostTrainJobSpec), document.get("spec"), "spec", gone)
    try:
        return PostTrainJob.model_validate(document, strict=True, by_alias=True, by_name=False), gone
    except ValidationError as error:
        raise SpecError(translate(PostTrainJob, error, document)) from None


def length(training: Training) -> tuple[str, float]:
    """The field that says how long the run is, and its number."""
    if training.steps is not None:
        return STEPS, training.steps
    return "spec.training.epochs", 1.0 if training.epochs is None else training.epochs


def _differing(schema: Schema, was: Any, now: Any, path: str, name: str) -> Iterator[Difference]:
    """path: with the numbers of entries, as a person finds it; name: without, as the table has it."""
    if was == now:
        return
    if isinstance(was, dict) and isinstance(now, dict) and schema.get("properties"):
        for key in dict.fromkeys([*was, *now]):
            below = (f"{path}.{key}", f"{name}.{key}") if name else (key, key)
            yield from _differing(child(schema, key) or {}, was.get(key), now.get(key), *below)
    elif isinstance(was, list) and isinstance(now, list) and schema.get("items", {}).get("properties"):
        for index in range(max(len(was), len(now))):
            before, after = (entries[index] if index < len(entries) else None for entries in (was, now))
            yield from _differing(schema["items"], before, after, f"{path}[{index}]", f"{name}[]")
    else:
        yield Difference(f"spec.{path}", _shown(was, name), _shown(now, name), _change(schema, name))


def _change(schema: Schema, name: str) -> Change:
    """Of a field, or of all that comes or goes with a map."""
    found = {changes().get(leaf, Change.MEANING) for leaf in leaves(schema, name)}
    return found.pop() if len(found) == 1 else Change.MEANING


def _shown(value: Any, name: str) -> str:
    if value is None:
        return UNSET
    if name.startswith(SECRETIVE):
        return HIDDEN
    return value if isinstance(value, str) and 0 < len(value) <= LONGEST and value.isprintable() else shown(value)


def _resolved(job: PostTrainJob) -> dict[str, Any]:
    """The spec as it is compared: with the number format that `auto` comes to on its chips."""
    spec: dict[str, Any] = manifest(job)["spec"]
    precision = spec["training"]["precision"]
    if precision["compute"] == "auto":
        precision["compute"] = "float32" if job.spec.accelerator.type.startswith("cpu-") else "bfloat16"
    return spec


def _known(schema: Schema, document: Any, path: str, gone: list[Difference]) -> Any:
    """The document without what is no field; that is put into `gone`."""
    if isinstance(document, list) and "items" in schema:
        return [_known(schema["items"], entry, f"{path}[{i}]", gone) for i, entry in enumerate(document)]
    if not isinstance(document, dict) or not schema.get("properties"):
        return document
    kept = {}
    for key, value in document.items():
        below = child(schema, key)
        if below is None:
            gone.append(Difference(f"{path}.{key}", shown(value), "no field any more", Change.MEANING))
        else:
            kept[key] = _known(below, value, f"{path}.{key}", gone)
    return kept
