"""Which fields of a job may change between two attempts of one run.

A resumed run is the same run, so a change to anything that shapes its result is refused (`MEANING`), or compared by the
content of the files that it names (`CONTENT`). Its length may change (`LENGTH`). Everything else is how and where the
run is computed, and what is kept and reported of it (`FREE`). The one idea: every field of the spec is in `GROUPS`, by
its name or that of a map above it; a test checks that, and a change to a missing field would be refused.

Left out: the cluster, where almost nothing of a job changes after creation (`crd.immutable_fields`), and the contents
of files, which the trainer compares.
"""

from collections.abc import Container, Iterator
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
    """What a changed field means to a run that has started."""

    MEANING = "refused"
    """The result would differ."""
    CONTENT = "by content"
    """A location: the same content elsewhere counts as unchanged."""
    LENGTH = "above what is done"
    """The length of the run."""
    FREE = "may change"
    """Reported in the log and in the lineage; the result is the same up to rounding."""


class Group(NamedTuple):
    """Fields of the same kind, and why they belong to it."""

    change: Change
    why: str
    fields: str


GROUPS = (
    Group(
        Change.LENGTH,
        "the length of the run and of its schedule: steps beyond the newest checkpoint, or more epochs",
        "training.steps training.epochs",
    ),
    Group(
        Change.CONTENT,
        "locations of your data, templates and code: the contents of the files are compared",
        "data.train.uri data.train.revision data.eval.uri data.eval.revision model.revision model.chatTemplate "
        "rewards[].python.uri environment.tools[].python.uri environment.python.uri",
    ),
    Group(
        Change.MEANING, "the trained model and its tokens", "model.uri model.tokenizer model.images model.panAndScan"
    ),
    Group(Change.MEANING, "what is computed", "algorithm"),
    Group(
        Change.MEANING,
        "which rows exist and how they are read; also held-out rows, because a curve is about one set",
        "data.train.format data.train.columns data.train.split data.train.limit data.eval.format data.eval.columns "
        "data.eval.split data.eval.limit data.systemPrompt data.onBadRow data.allowHttpsImages",
    ),
    Group(
        Change.MEANING,
        "the reward of a completion; a time limit decides which samples count",
        "rewards[].name rewards[].builtin rewards[].python.code rewards[].python.function rewards[].judge.url "
        "rewards[].judge.model rewards[].judge.service services[].model "
        "rewards[].judge.prompt rewards[].judge.lowest rewards[].judge.highest rewards[].judge.maxTokens "
        "rewards[].model.uri rewards[].model.revision "
        "rewards[].weight rewards[].timeoutSeconds rewards[].pattern rewards[].batched rewards[].maxTokens "
        "rewards[].bufferTokens",
    ),
    Group(
        Change.MEANING,
        "the environment's replies to the model",
        "environment.tools[].builtin environment.tools[].python.code environment.tools[].python.function "
        "environment.python.code environment.python.className environment.gymnasium environment.packages "
        "environment.verifiers environment.mcp[].command "
        "environment.openenv.actionField environment.openenv.observationField environment.mcp[].name "
        "environment.mcp[].tools environment.mcp[].timeoutSeconds environment.mcp[].maxResultBytes "
        "environment.toolFormat environment.maxTurns environment.maxObservationTokens environment.timeoutSeconds "
        "environment.rewardWeight",
    ),
    Group(
        Change.MEANING,
        "how and which weights are updated; `auto` in `precision` counts as its value on the chips",
        "training.batchSize training.sequenceLength training.seed training.freeze training.vision training.ema "
        "training.neftuneAlpha training.optimizer training.schedule training.lora training.quantization "
        "training.precision",
    ),
    Group(
        Change.MEANING,
        "the distribution of the samples and how stale it may be; vLLM's samples differ from the native engine's",
        "rollout.maxNewTokens rollout.temperature rollout.topP rollout.topK rollout.minP rollout.minNewTokens "
        "rollout.stop rollout.engine rollout.maxStaleness rollout.inFlightUpdates rollout.routingReplay",
    ),
    Group(
        Change.MEANING,
        "the meaning of evaluation metrics",
        "evaluation.maxNewTokens evaluation.passMark evaluation.labels",
    ),
    Group(Change.MEANING, "the start of the run", "checkpoint.fork"),
    Group(
        Change.MEANING, "another program instead of the trainer", "runtime.maxtext runtime.container runtime.function"
    ),
    Group(
        Change.FREE,
        "chips and layout: results equal up to rounding",
        "accelerator training.microBatchSize training.remat training.parallelism rollout.placement "
        "rollout.samplerShare rollout.separate evaluation.batchSize",
    ),
    Group(Change.FREE, "the speed of sampling the same samples", "rollout.slots rollout.speculative rollout.vllm"),
    Group(
        Change.FREE,
        "access to a judge, its budget, a server of OpenEnv's or MCP; how many completions a reward model scores "
        "at once",
        "rewards[].judge.concurrency rewards[].judge.retries rewards[].judge.apiKeyEnv rewards[].judge.budget "
        "rewards[].model.batchSize environment.openenv.url environment.openenv.service environment.mcp[].url "
        "environment.mcp[].service environment.mcp[].path environment.mcp[].concurrency environment.mcp[].apiKeyEnv",
    ),
    Group(
        Change.FREE,
        "how many services there are, and what runs them",
        "services[].name services[].replicas services[].accelerator services[].maxModelLen services[].image "
        "services[].command services[].args services[].env services[].port services[].readinessPath",
    ),
    Group(
        Change.FREE,
        "when the run is evaluated, and what else it measures",
        "evaluation.everySteps evaluation.atStart evaluation.atEnd evaluation.samples evaluation.answers "
        "training.profile tensorboard tracking",
    ),
    Group(
        Change.FREE,
        "what is kept and exported, and the location of the run directory",
        "checkpoint.everySteps checkpoint.everySeconds checkpoint.keep checkpoint.keepEverySteps checkpoint.best "
        "checkpoint.resume export output.uri",
    ),
    Group(
        Change.FREE,
        "limits of the run",
        "training.maxNonFiniteSteps training.maxFailedSteps training.minLearningShare training.circuitBreaker "
        "runPolicy",
    ),
    Group(
        Change.FREE,
        "how chips and pods are obtained, and what serves the result",
        "serve capacity preflight model.stage queue queuePriorityClassName priorityClassName pathways",
    ),
    Group(
        Change.FREE,
        "the contents of the pod, and where a program or a tool runs",
        "sandbox image imagePullSecrets env volumes resources pod serviceAccountName runtime.native "
        "model.tokenSecretRef",
    ),
)

STEPS = "spec.training.steps"
UNSET = "unset"
HIDDEN = "(not shown)"
MAX_LENGTH = 1024
"""Longest text shown in full: the longest URI."""
SECRET_FIELDS = ("env[", "services[].env", "pod.initContainers")
"""Prefixes of fields whose values may be secrets: they are never shown."""
SECRET_MAPS = ("pod", "services[]")
"""Maps that hold such a field, where they appear or disappear whole."""


class Difference(NamedTuple):
    """A field that differs from the run so far.

    field: path from `spec` on; was, now: printable values; note: the consequence.
    """

    field: str
    was: str
    now: str
    change: Change
    note: str = ""

    def __str__(self) -> str:
        return f"{self.field}: was {self.was}, is {self.now}{self.note}"


@cache
def changes() -> dict[str, Change]:
    """Return the meaning of a change by field name without indices: `rewards[].weight`."""
    named = {name: group.change for group in GROUPS for name in group.fields.split()}
    above = {leaf: _nearest(leaf, named) for leaf in leaves(structural(PostTrainJobSpec), "")}
    return {leaf: named[name] for leaf, name in above.items() if name}


def _nearest(leaf: str, named: Container[str]) -> str:
    """Return the name that a field is listed by: its own, or that of a map above it; empty if it is not."""
    while leaf and leaf not in named:
        leaf = leaf.rpartition(".")[0].removesuffix("[]")
    return leaf


def leaves(schema: Schema, path: str) -> Iterator[str]:
    """Yield the names of the fields under a schema that hold values."""
    properties = schema.get("properties") or schema.get("items", {}).get("properties")
    if not properties:
        yield path
        return
    start = f"{path}[]." if "items" in schema else f"{path}." if path else ""
    for name, field in properties.items():
        yield from leaves(field, f"{start}{name}")


def differences(before: PostTrainJob, now: PostTrainJob) -> list[Difference]:
    """Return every difference between the job as it ran and as it is now, with defaults filled in."""
    schema = structural(PostTrainJobSpec)
    return list(_compare(schema, _comparable(before), _comparable(now), "", ""))


def read_job(content: bytes) -> tuple[PostTrainJob, list[Difference]]:
    """Parse a run directory's spec.yaml, whatever version of posttrain wrote it. Raises SpecError.

    Fields added since then get their defaults; fields that no longer exist are returned as differences.
    """
    try:
        document = kubectl_yaml.read(content.decode())
    except UnicodeDecodeError:
        raise SpecError([Finding("job", "", "is not UTF-8 text")]) from None
    if not isinstance(document, dict):
        raise SpecError([Finding("job", shown(document), "is not a job")])
    removed: list[Difference] = []
    document = without_nulls(document)
    document["spec"] = _remove_unknown(structural(PostTrainJobSpec), document.get("spec"), "spec", removed)
    try:
        return PostTrainJob.model_validate(document, strict=True, by_alias=True, by_name=False), removed
    except ValidationError as error:
        raise SpecError(translate(PostTrainJob, error, document)) from None


def length(training: Training) -> tuple[str, float]:
    """Return the field that sets the length of the run, and its value."""
    if training.steps is not None:
        return STEPS, training.steps
    return "spec.training.epochs", 1.0 if training.epochs is None else training.epochs


def _compare(schema: Schema, was: Any, now: Any, path: str, name: str) -> Iterator[Difference]:
    """Yield the differences. path: with list indices, for people; name: without, as in the table."""
    if was == now:
        return
    if isinstance(was, dict) and isinstance(now, dict) and schema.get("properties"):
        for key in dict.fromkeys([*was, *now]):
            paths = (f"{path}.{key}", f"{name}.{key}") if name else (key, key)
            yield from _compare(child(schema, key) or {}, was.get(key), now.get(key), *paths)
    elif isinstance(was, list) and isinstance(now, list) and schema.get("items", {}).get("properties"):
        for index in range(max(len(was), len(now))):
            before, after = (entries[index] if index < len(entries) else None for entries in (was, now))
            yield from _compare(schema["items"], before, after, f"{path}[{index}]", f"{name}[]")
    else:
        yield Difference(f"spec.{path}", _format(was, name), _format(now, name), _change(schema, name))


def _change(schema: Schema, name: str) -> Change:
    """Return the meaning of a change to a field, or to all fields of a map that appears or disappears."""
    meanings = {changes().get(leaf, Change.MEANING) for leaf in leaves(schema, name)}
    return meanings.pop() if len(meanings) == 1 else Change.MEANING


def _format(value: Any, name: str) -> str:
    if value is None:
        return UNSET
    if name in SECRET_MAPS or name.startswith(SECRET_FIELDS):
        return HIDDEN
    return value if isinstance(value, str) and 0 < len(value) <= MAX_LENGTH and value.isprintable() else shown(value)


def _comparable(job: PostTrainJob) -> dict[str, Any]:
    """Return the spec for comparison: `auto` precision resolved for its chips, and the engine where it samples."""
    spec: dict[str, Any] = manifest(job)["spec"]
    spec["rollout"]["engine"] = job.spec.rollout.sampling_engine
    spec["rollout"].get("separate", {}).pop("engine", None)
    formats = job.spec.training.formats(on_cpu=job.spec.accelerator.type.startswith("cpu-"))
    spec["training"]["precision"] = {"params": formats.params, "compute": formats.compute}
    return spec


def _remove_unknown(schema: Schema, document: Any, path: str, removed: list[Difference]) -> Any:
    """Return the document without unknown fields, which are appended to `removed`."""
    if isinstance(document, list) and "items" in schema:
        return [_remove_unknown(schema["items"], entry, f"{path}[{i}]", removed) for i, entry in enumerate(document)]
    if not isinstance(document, dict) or not schema.get("properties"):
        return document
    kept = {}
    for key, value in document.items():
        child_schema = child(schema, key)
        if child_schema is None:
            removed.append(Difference(f"{path}.{key}", shown(value), "no longer a field", Change.MEANING))
        else:
            kept[key] = _remove_unknown(child_schema, value, f"{path}.{key}", removed)
    return kept
