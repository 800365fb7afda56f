"""Wrong manifests, each refused with the field, the value and what is accepted.

One entry per mistake: what is changed in a good job, the field that is named, the value that is shown, and words of
what is accepted. `at_server` says who can refuse it at `kubectl apply`: the schema or CEL of the CRD, or only Python.
The integration tests apply the same table to an API server.
"""

import copy
from dataclasses import dataclass
from typing import Any

import pytest

from ptapi.errors import SpecError
from ptapi.load import load_job, parse_job
from ptapi.validation import RULES
from ptapi.validation.rules.chips.accelerator import checked_by_table

GOOD: dict[str, Any] = {
    "apiVersion": "posttrain.dev/v1alpha1",
    "kind": "PostTrainJob",
    "metadata": {"name": "good"},
    "spec": {
        "model": {"uri": "random://tiny"},
        "algorithm": {"grpo": {"groupSize": 4}},
        "data": {"train": {"uri": "file:///data/train.jsonl"}},
        "rewards": [{"builtin": "gsm8k"}],
        "training": {"steps": 10, "batchSize": 16, "sequenceLength": 256},
        "rollout": {"maxNewTokens": 128},
        "accelerator": {"type": "cpu-2"},
        "output": {"uri": "file:///runs"},
    },
}


class _Gone:
    def __repr__(self) -> str:
        return "GONE"


GONE = _Gone()


@dataclass(frozen=True)
class Wrong:
    """name: the mistake; patch: dotted path → value; at_server: whether the CRD refuses it."""

    name: str
    patch: dict[str, Any]
    field: str
    value: str
    words: str
    at_server: bool = True


SFT: dict[str, Any] = {"spec.algorithm": {"sft": {}}, "spec.rewards": GONE}
SPLIT: dict[str, Any] = {"spec.rollout.placement": "disaggregated", "spec.accelerator.type": "cpu-4"}
SLICES: dict[str, Any] = {
    **SPLIT, "spec.accelerator": {"type": "v6e-16", "slices": 3}, "spec.pathways": {"enabled": True},
    "spec.output": {"uri": "gs://bucket/runs"}, "spec.training.batchSize": 32,
}  # fmt: skip
DPO: dict[str, Any] = {"spec.algorithm": {"dpo": {}}, "spec.rewards": GONE}
PPO: dict[str, Any] = {"spec.algorithm": {"ppo": {}}}
CONTAINER: dict[str, Any] = {"spec.runtime": {"container": {"command": ["train"]}}, "spec.image": "registry/image"}


def _self_taught(teacher: dict[str, Any], **distill: Any) -> dict[str, Any]:
    return {**SFT, "spec.algorithm": {"distill": {"selfTeacher": teacher, **distill}}}


def _at(name: str, field: str, value: Any, shown: str, words: str, at_server: bool = True) -> Wrong:
    """Return the mistake of one field."""
    return Wrong(name, {field: value}, field, shown, words, at_server)


WRONG: tuple[Wrong, ...] = (
    # The object
    _at("wrong version", "apiVersion", "posttrain.dev/v1", "posttrain.dev/v1", "posttrain.dev/v1alpha1"),
    _at("wrong kind", "kind", "TrainJob", "TrainJob", "PostTrainJob"),
    _at("no name", "metadata.name", GONE, "(missing)", "lower-case letters"),
    _at("upper case in the name", "metadata.name", "Llama", "Llama", "lower-case letters"),
    _at("name starts with a digit", "metadata.name", "8b", "8b", "starting with a letter"),
    _at("name too long", "metadata.name", "a" * 64, "a" * 64, "1 to 63 characters"),
    _at("name with a dot", "metadata.name", "a.b", "a.b", "letters, digits and -"),
    _at("spec is text", "spec", "sft", "sft", "a map with model"),
    # Unknown and missing fields
    _at("unknown field", "spec.modle", {}, "{}", "did you mean spec.model?"),
    _at("field in the wrong place", "spec.steps", 5, "5", "did you mean spec.training.steps?"),
    _at("snake case", "spec.training.batch_size", 8, "8", "spec.training.batchSize?"),
    Wrong("unknown field in a list", {"spec.rewards": [{"builtin": "gsm8k", "wieght": 2}]},
          "spec.rewards[0].wieght", "2", "did you mean spec.rewards[0].weight?"),
    Wrong("field of another source", {"spec.volumes": [{"name": "a", "mountPath": "/a",
          "emptyDir": {"medium": "Memory"}}]},
          "spec.volumes[0].emptyDir.medium", "Memory", "the map is empty"),
    _at("no model", "spec.model", GONE, "(missing)", "is required: a map with uri"),
    _at("no output", "spec.output", GONE, "(missing)", "is required"),
    Wrong("no training data", {"spec.data": {}}, "spec.data.train", "(missing)", "is required"),
    # Wrong types and ranges
    _at("number as text", "spec.training.batchSize", "16", '"16"', "a whole number from 1"),
    _at("fraction of a step", "spec.training.steps", 1.5, "1.5", "a whole number from 1"),
    _at("zero batch", "spec.training.batchSize", 0, "0", "from 1 to 1000000000"),
    _at("an optimizer that does not exist", "spec.training.optimizer.name", "adam", "adam",
        "adamw, adafactor, muon, lion"),
    Wrong("a first moment for adafactor", {"spec.training.optimizer": {"name": "adafactor", "beta1": 0.9}},
          "spec.training.optimizer.beta1", "0.9", "unset, because adafactor has none"),
    Wrong("a second moment for adafactor", {"spec.training.optimizer": {"name": "adafactor", "beta2": 0.99}},
          "spec.training.optimizer.beta2", "0.99", "unset, because adafactor has none"),
    Wrong("eps for adafactor", {"spec.training.optimizer": {"name": "adafactor", "eps": 1e-6}},
          "spec.training.optimizer.eps", "1e-06", "unset, because adafactor has none"),
    Wrong("eps for lion", {"spec.training.optimizer": {"name": "lion", "eps": 1e-6}},
          "spec.training.optimizer.eps", "1e-06", "unset, because lion has none"),
    Wrong("muon on adapters", {"spec.training": {"lora": {}, "optimizer": {"name": "muon"}}},
          "spec.training.optimizer.name", "muon", "adamw, adafactor or lion with lora"),
    _at("adapters that read nothing", "spec.training.lora.dropout", 1.0, "1", "below 1"),
    Wrong("adapters of a file and of a fork",
          {"spec.training": {"lora": {"from": "hf://org/adapters"}},
           "spec.checkpoint": {"fork": {"uri": "gs://bucket/runs/other"}}},
          "spec.training.lora.from", "hf://org/adapters", "unset with checkpoint.fork"),
    Wrong("frozen parts beside adapters", {"spec.training": {"lora": {}, "freeze": ["embeddings"]}},
          "spec.training.freeze", "[embeddings]", "unset with lora"),
    _at("an average that forgets nothing", "spec.training.ema.decay", 1.0, "1", "below 1"),
    Wrong("smoothed dft", SFT | {"spec.algorithm": {"sft": {"loss": "dft", "labelSmoothing": 0.1}}},
          "spec.algorithm.sft.labelSmoothing", "0.1", "0 with loss: dft"),
    _at("no non-finite step at all", "spec.training.maxNonFiniteSteps", 0, "0", "1"),
    _at("no failed step at all", "spec.training.maxFailedSteps", 0, "0", "1"),
    _at("more than all steps learn", "spec.training.minLearningShare", 1.5, "1.5", "0 to 1"),
    _at("negative learning rate", "spec.training.optimizer.learningRate", -1e-5, "-1e-05", "a number from 1e-12 to 10"),
    _at("text as boolean", "spec.runPolicy.suspend", "true", '"true"', "true or false"),
    _at("number as text field", "spec.image", 7, "7", 'in quotes it is text: "7"'),
    Wrong("boolean as environment value", {"spec.env": [{"name": "DEBUG", "value": True}]},
          "spec.env[0].value", "(not shown)", "in quotes it is text"),
    _at("list instead of map", "spec.training.schedule", ["cosine"], '["cosine"]', "kind"),
    _at("map instead of list", "spec.rewards", {"builtin": "gsm8k"}, '{"builtin": "gsm8k"}', "a list of"),
    _at("null where something belongs", "spec.output", None, "(missing)", "is required"),
    Wrong("null in a list", {"spec.rewards": [None]}, "spec.rewards[0]", "null", "a map with name, builtin"),
    _at("unknown word", "spec.training.schedule.kind", "cosin", "cosin",
        "one of constant, linear, cosine; hint: did you mean cosine?"),
    Wrong("unknown reward", {"spec.rewards": [{"builtin": "gsm"}]},
          "spec.rewards[0].builtin", "gsm", "one of gsm8k, format"),
    _at("unknown uri scheme", "spec.data.train.uri", "s3://b/x", "s3://b/x",
        "gs://…, file:///… or hf://datasets/organisation/name"),
    _at("relative file uri", "spec.output.uri", "file://runs", "file://runs", "gs://… or file:///…"),
    _at("path without a scheme", "spec.output.uri", "/runs", "/runs", "a URI of a directory"),
    _at("mesh axis of zero", "spec.training.parallelism.fsdp", 0, "0", "a whole number from 1 to 100000, or auto"),
    _at("mesh axis in other words", "spec.training.parallelism.fsdp", "all", "all", "or auto"),
    _at("too many rewards", "spec.rewards", [{"builtin": "gsm8k", "name": f"r{i}"} for i in range(17)], "r0",
        "a list of at most 16 entries"),
    Wrong("bad shape", {"spec.accelerator": {"type": "v6e-16", "topology": "4*4"}},
          "spec.accelerator.topology", "4*4", "4x4"),
    # The algorithm
    Wrong("no algorithm", {**SFT, "spec.algorithm": {}}, "spec.algorithm", "{}", "exactly one of sft, dpo, grpo"),
    _at("two algorithms", "spec.algorithm", {"sft": {}, "grpo": {}}, "grpo", "exactly one of"),
    _at("grpo without reward", "spec.rewards", GONE, "[]", "at least one reward"),
    Wrong("sft with rewards", {"spec.algorithm": {"sft": {}}}, "spec.rewards", "gsm8k", "none without data.eval"),
    Wrong("reward of two kinds", {"spec.rewards": [{"builtin": "gsm8k", "python": {"uri": "file:///r.py"}}]},
          "spec.rewards[0]", "gsm8k", "exactly one of builtin, python"),
    Wrong("an option of pip's", {"spec.runtime": {"function": {"code": "a = 1", "requirements": ["-r file"]}}},
          "spec.runtime.function.requirements[0]", "-r file", "a package as pip takes it"),
    Wrong("a function and a command", {"spec.runtime": {"function": {"code": "a = 1"}, "native": {}}},
          "spec.runtime", "a = 1", "at most one of native, maxtext, container, function"),
    Wrong("code of a reward that is no Python", {"spec.rewards": [{"python": {"code": "def reward"}}]},
          "spec.rewards[0].python.code", "def reward", "text that Python 3", at_server=False),
    Wrong("an environment that is no Python", {"spec.environment": {"python": {"code": "class"}}},
          "spec.environment.python.code", "class", "text that Python 3", at_server=False),
    Wrong("a tool that is no Python", {"spec.environment": {"tools": [{"python": {"code": "x =", "function": "x"}}]}},
          "spec.environment.tools[0].python.code", "x =", "text that Python 3", at_server=False),
    Wrong("code in two places", {"spec.rewards": [{"python": {"uri": "file:///r.py", "code": "a = 1"}}]},
          "spec.rewards[0].python", "a = 1", "exactly one of uri, code"),
    Wrong("reward of no kind", {"spec.rewards": [{"weight": 2.0}]}, "spec.rewards[0]", "2.0", "exactly one of"),
    Wrong("pattern of another reward", {"spec.rewards": [{"builtin": "gsm8k", "pattern": "a"}]},
          "spec.rewards[0].pattern", "a", "only the builtin format"),
    Wrong("pattern that is none", {"spec.rewards": [{"builtin": "format", "pattern": "(a"}]},
          "spec.rewards[0].pattern", "(a", "a regular expression", at_server=False),
    _at("the same reward twice", "spec.rewards", [{"builtin": "gsm8k"}, {"builtin": "gsm8k"}], "gsm8k",
        "rewards with different names"),
    Wrong("the same function twice",
          {"spec.rewards": [{"python": {"uri": "file:///a.py"}}, {"python": {"uri": "file:///b.py"}}]},
          "spec.rewards", "a.py", "rewards with different names", at_server=False),
    # Batches and lengths
    _at("batch not of whole groups", "spec.training.batchSize", 18, "18", "groupSize"),
    _at("micro-batch that splits a group", "spec.training.microBatchSize", 2, "2", "a group is never split"),
    Wrong("micro-batch that does not divide", {**SFT, "spec.training.microBatchSize": 6},
          "spec.training.microBatchSize", "6", "a divisor of batchSize"),
    _at("steps and epochs", "spec.training.epochs", 1, "1.0", "one of steps, epochs"),
    _at("no room for a prompt", "spec.rollout.maxNewTokens", 256, "256", "less than"),
    _at("no room for a prompt in evaluation", "spec.evaluation.maxNewTokens", 300, "300",
        "less than training.sequenceLength"),
    Wrong("penalty longer than a completion",
          {"spec.algorithm": {"grpo": {"groupSize": 4, "overlong": {"bufferTokens": 129}}}},
          "spec.algorithm.grpo.overlong.bufferTokens", "129", "at most rollout.maxNewTokens"),
    Wrong("a profile after the end", {"spec.training": {"steps": 5, "profile": {"start": 4, "steps": 3}}},
          "spec.training.profile", "start", "start + steps - 1"),
    Wrong("evaluation without data", {"spec.evaluation": {"everySteps": 5}},
          "spec.data.eval", "(missing)", "held-out data"),
    Wrong("batch not divisible by devices", {**SFT, "spec.training.batchSize": 15},
          "spec.training.batchSize", "15", "cpu-2 (2 virtual devices) splits the batch 2 ways"),
    Wrong("micro-batch not divisible by devices",
          {**SFT, "spec.training.microBatchSize": 2, "spec.accelerator.type": "cpu-4"},
          "spec.training.microBatchSize", "2", "a multiple of 4"),
    _at("mesh of other devices", "spec.training.parallelism", {"tensor": 3}, "tensor: 3", "product is 2"),
    _at("experts over other devices", "spec.training.parallelism", {"expert": 4}, "expert: 4", "product is 2"),
    Wrong("rows that sequence does not divide",
          {"spec.training.parallelism": {"sequence": 2}, "spec.training.sequenceLength": 257},
          "spec.training.sequenceLength", "257", "a multiple of training.parallelism.sequence"),
    # Checkpoints
    _at("best of nothing", "spec.checkpoint.best", {}, "{}", "data.eval"),
    Wrong("best by a training metric",
          {"spec.checkpoint": {"best": {"metric": "loss"}}, "spec.data.eval": {"uri": "file:///data/eval.jsonl"}},
          "spec.checkpoint.best.metric", "loss", "a metric of an evaluation"),
    _at("export of the best of nothing", "spec.export.checkpoint", "best", "best", "needs checkpoint.best"),
    _at("fork from a model hub", "spec.checkpoint.fork.uri", "hf://org/model", "hf://org/model", "gs://… or file:///…"),
    # Chips
    _at("unknown accelerator", "spec.accelerator.type", "v5p-9", "v5p-9", "v5p-8 (4 chips), v5p-16 (8 chips)"),
    _at("unknown family", "spec.accelerator.type", "h100-8", "h100-8", "known families"),
    _at("too many virtual devices", "spec.accelerator.type", "cpu-65", "cpu-65", "cpu-1 to cpu-64"),
    Wrong("topology that does not fit", {"spec.accelerator": {"type": "v6e-16", "topology": "2x8"}},
          "spec.accelerator.topology", "2x8", "accepted: 4x4", at_server=False),
    _at("topology of a laptop", "spec.accelerator.topology", "2x2", "2x2", "has no topology"),
    _at("XLA flags for a laptop", "spec.accelerator.xlaFlags", ["--xla_a=1"], "--xla_a=1",
        "none with a cpu accelerator"),
    Wrong("an XLA flag twice", {"spec.accelerator": {"type": "v6e-16", "xlaFlags": ["--xla_a=1", "--xla_a=2"]}},
          "spec.accelerator.xlaFlags", "--xla_a=1", "each flag once"),
    Wrong("a flag that is not XLA's", {"spec.accelerator": {"type": "v6e-16", "xlaFlags": ["--megascale_a=1"]}},
          "spec.accelerator.xlaFlags[0]", "--megascale_a=1", "--xla_name=value"),
    _at("no slices", "spec.accelerator.slices", 0, "0", "from 1 to 512"),
    Wrong("reservation without a name", {"spec.accelerator": {"type": "v6e-16"},
          "spec.capacity": [{"type": "reservation"}]},
          "spec.capacity[0].reservation", "(missing)", "the reservation's name with type: reservation"),
    Wrong("name of no reservation", {"spec.capacity": [{"type": "existing", "reservation": "r"}]},
          "spec.capacity[0].reservation", "r", "unset with every other type"),
    _at("no way to obtain chips", "spec.capacity", [], "[]", "a list of 1 to 16 entries"),
    # Model
    Wrong("an offline W&B run in a bucket", {"spec.tracking": {"wandb": {"project": "p", "mode": "offline"}},
          "spec.output.uri": "gs://b/runs"}, "spec.tracking.wandb.mode", "offline",
          "together with a file:// output.uri"),
    Wrong("a tracker of another program", {"spec.tracking": {"wandb": {"project": "p"}},
          "spec.image": "registry/mine:1", "spec.runtime": {"container": {"command": ["python", "train.py"]}}},
          "spec.tracking", '{"wandb": {"project": "p"}}', "together with posttrain's own trainer"),
    Wrong("Trackio's files in a bucket", {"spec.tracking": {"trackio": {"project": "p"}},
          "spec.output.uri": "gs://b/runs"}, "spec.tracking.trackio.spaceId", "(missing)", "a Space, org/name"),
    Wrong("a tracker's project that is a path", {"spec.tracking": {"wandb": {"project": "a/b"}}},
          "spec.tracking.wandb.project", "a/b", "a name without /"),
    _at("a TensorBoard of a laptop's files", "spec.tensorboard.server", True, "true",
        "false, unless output.uri is gs://"),
    Wrong("revision of a bucket", {"spec.model": {"uri": "gs://b/m", "revision": "main"}},
          "spec.model.revision", "main", "only hf:// models"),
    # Data
    _at("a model's name as data", "spec.data.train.uri", "hf://org/name", "hf://org/name",
        "hf://datasets/organisation/name"),
    _at("a data set without its organisation", "spec.data.eval.uri", "hf://datasets/name", "hf://datasets/name",
        "hf://datasets/organisation/name"),
    _at("revision of a file", "spec.data.train.revision", "main", "main", "only hf:// data"),
    _at("a third way with bad rows", "spec.data.onBadRow", "mend", "mend", "one of fail, skip"),
    # The pod
    Wrong("variable without value", {"spec.env": [{"name": "A"}]},
          "spec.env[0]", "(not shown)", "exactly one of value"),
    Wrong("variable with two values",
          {"spec.env": [{"name": "A", "value": "1", "valueFrom": {"secretKeyRef": {"name": "s"}}}]},
          "spec.env[0]", "(not shown)", "exactly one of value, valueFrom"),
    Wrong("token in the open", {"spec.env": [{"name": "HF_TOKEN", "value": "hf_abc"}]},
          "spec.env[0].value", "(not shown)", "secretKeyRef"),
    Wrong("variable of the operator", {"spec.env": [{"name": "JAX_PROCESS_ID", "value": "0"}]},
          "spec.env[0].name", "JAX_PROCESS_ID", "the operator does not set itself"),
    _at("the same variable twice", "spec.env", [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}],
        "(not shown)", "different names"),
    Wrong("bad variable name", {"spec.env": [{"name": "A-B", "value": "1"}]},
          "spec.env[0].name", "A-B", "letters, digits"),
    Wrong("volume without source", {"spec.volumes": [{"name": "a", "mountPath": "/a"}]},
          "spec.volumes[0]", "/a", "exactly one of configMap"),
    Wrong("volume with two sources",
          {"spec.volumes": [{"name": "a", "mountPath": "/a", "emptyDir": {}, "configMap": {"name": "c"}}]},
          "spec.volumes[0]", "configMap", "exactly one of configMap"),
    Wrong("volume over the job", {"spec.volumes": [{"name": "a", "mountPath": "/etc/posttrain/x", "emptyDir": {}}]},
          "spec.volumes[0].mountPath", "/etc/posttrain/x", "a path outside /etc/posttrain"),
    Wrong("volume with the operator's name", {"spec.volumes": [{"name": "posttrain-job", "mountPath": "/a",
          "emptyDir": {}}]},
          "spec.volumes[0].name", "posttrain-job", "does not start with posttrain-"),
    Wrong("relative mount path", {"spec.volumes": [{"name": "a", "mountPath": "data", "emptyDir": {}}]},
          "spec.volumes[0].mountPath", "data", "an absolute path"),
    Wrong("two slices of one host each", {"spec.accelerator": {"type": "v5p-8", "slices": 2}},
          "spec.accelerator.slices", "2", "joins slices of several hosts only", at_server=False),
    Wrong("two slices of one chip each, by another name", {"spec.accelerator": {"type": "trillium-1x1", "slices": 2}},
          "spec.accelerator.slices", "2", "joins slices of several hosts only", at_server=False),
    # Resources and overrides of the pods
    _at("no quantity", "spec.resources.trainer.limits.memory", "64 GB", "64 GB", "a quantity such as 500m"),
    _at("a negative quantity", "spec.resources.trainer.requests.cpu", "-1", "-1", "a quantity such as 500m"),
    _at("a fraction without quotes", "spec.resources.trainer.requests.cpu", 0.5, "0.5", 'in quotes it is text: "0.5"'),
    Wrong("a resource of others", {"spec.resources": {"trainer": {"limits": {"google.com/tpu": 4}}}},
          "spec.resources.trainer.limits.google.com/tpu", "4", "accepted: cpu, memory, ephemeral-storage"),
    *(Wrong(f"more {name} requested than allowed",
            {"spec.resources": {"preflight": {"requests": {name: more}, "limits": {name: less}}}},
            f"spec.resources.preflight.requests.{name}", more, f"at most limits.{name}", at_server=False)
      for name, more, less in (("cpu", "2", "1900m"), ("memory", "2Gi", "1.9Gi"), ("ephemeral-storage", "2G", "1Gi"))),
    _at("more cores than any machine has", "spec.resources.trainer.limits.cpu", "1e6", "1e6", "from 1m to 100000",
        at_server=False),
    _at("64 bytes of memory", "spec.resources.trainer.limits.memory", 64, "64", "from 4Mi to 1Pi", at_server=False),
    _at("resources of what does not run", "spec.resources.pathwaysProxy", {"limits": {"cpu": 1}}, "cpu",
        "because pathways.enabled is not true", at_server=False),
    Wrong("a profile on the node without a file", {"spec.pod": {"securityContext": {"seccompProfile": {
          "type": "Localhost"}}}},
          "spec.pod.securityContext.seccompProfile.localhostProfile", "(missing)", "a file on the node with type"),
    _at("a capability by its C name", "spec.pod.containerSecurityContext.capabilities.add", ["CAP_NET_ADMIN"],
        "CAP_NET_ADMIN", "without CAP_", at_server=False),
    _at("two init containers of one name", "spec.pod.initContainers", [{"name": "a", "command": ["a"]}] * 2,
        "(not shown)", "containers with different names"),
    _at("a label of the job with a space", "metadata.labels", {"a b": "c"}, "a b", "keys such as team"),
    _at("a secret twice", "spec.imagePullSecrets", ["a", "a"], "a", "each name once", at_server=False),
    Wrong("a volume over the system", {"spec.volumes": [{"name": "a", "mountPath": "/usr", "emptyDir": {}}]},
          "spec.volumes[0].mountPath", "/usr", "hides no directory of the image"),
    # What would be accepted and ignored
    Wrong("a teacher's revision without a hub", {**SFT, "spec.algorithm": {"distill": {"teacher": {
              "uri": "gs://b/m", "revision": "main"}}}},
          "spec.algorithm.distill.teacher.revision", "main", "only hf:// models"),
    Wrong("an estimator of no KL", {"spec.algorithm": {"grpo": {"groupSize": 4, "kl": "k3"}}},
          "spec.algorithm.grpo.kl", "k3", "unset with beta: 0"),
    Wrong("an end of no decay", {"spec.training.schedule": {"kind": "constant", "finalFraction": 0.5}},
          "spec.training.schedule.finalFraction", "0.5", "unset with kind: constant"),
    _at("frozen twice", "spec.training.freeze", ["norms", "norms"], "norms", "each pattern once", at_server=False),
    _at("rewards of no weight", "spec.rewards", [{"builtin": "gsm8k", "weight": 0}], "0.0", "a weight other than 0",
        at_server=False),
    Wrong("a longer fall than way", {"spec.rewards": [{"builtin": "length", "maxTokens": 9, "bufferTokens": 10}]},
          "spec.rewards[0].bufferTokens", "10", "at most maxTokens"),
    _at("a longer fall than a completion", "spec.rewards", [{"builtin": "length", "bufferTokens": 129}], "129",
        "at most rollout.maxNewTokens", at_server=False),
    Wrong("a judge that sees no answer", {"spec.rewards": [{"name": "j", "judge": {
              "url": "https://a.b/v1", "model": "m", "prompt": "Is it good?"}}]},
          "spec.rewards[0].judge.prompt", "Is it good?", "text with {completion}", at_server=False),
    Wrong("a judge's whole address", {"spec.rewards": [{"name": "j", "judge": {
              "url": "https://a.b/v1/chat/completions", "model": "m"}}]},
          "spec.rewards[0].judge.url", "/chat/completions", "the endpoint's base"),
    _at("the same tool twice", "spec.environment.tools", [{"builtin": "lookup"}, {"builtin": "lookup"}], "lookup",
        "tools with different names", at_server=False),
    Wrong("a format of no calls", {"spec.environment": {"python": {"uri": "file:///e.py"}, "toolFormat": "llama"}},
          "spec.environment.toolFormat", "llama", "unset with python"),
    Wrong("a weight of no reward", {"spec.environment": {"tools": [{"builtin": "lookup"}], "rewardWeight": 2.0}},
          "spec.environment.rewardWeight", "2.0", "unset with tools"),
    Wrong("a metric twice", {"spec.data.eval": {"uri": "gs://b/e.jsonl"},
                             "spec.evaluation": {"answers": ["accuracy", "accuracy"]}},
          "spec.evaluation.answers", "accuracy", "each one once", at_server=False),
    _at("samples of no prompts", "spec.evaluation.samples", 4, "4", "together with data.eval"),
    Wrong("the worst checkpoint", {"spec.data.eval": {"uri": "gs://b/e.jsonl"},
                                   "spec.checkpoint": {"best": {"metric": "eval/reward"}}},
          "spec.checkpoint.best.mode", "min", "max for this metric"),
    _at("a fork of itself", "spec.checkpoint.fork.uri", "file:///runs/good/checkpoints/5", "file:///runs/good",
        "the job's own run directory", at_server=False),
    _at("two parts of a row in one column", "spec.data.train.columns", {"prompt": "a", "answer": "a"}, "a",
        "different columns", at_server=False),
    _at("a stop twice", "spec.rollout.stop", ["a", "a"], "a", "each text once", at_server=False),
    Wrong("vLLM's API instead of its root", {"spec.rollout": {"maxNewTokens": 64, "engine": "vllm", "vllm": {
              "endpoint": "http://vllm:8000/v1", "weightsDirectory": "/w"}}},
          "spec.rollout.vllm.endpoint", "/v1", "without /v1"),
    Wrong("a zone twice", {"spec.accelerator.type": "v6e-4", "spec.capacity": [
              {"type": "spot", "zones": ["us-east5-a", "us-east5-a"]}]},
          "spec.capacity[0].zones", "us-east5-a", "each zone once", at_server=False),
    Wrong("an option twice", {"spec.accelerator.type": "v6e-4", "spec.capacity": [{"type": "spot"}] * 2},
          "spec.capacity", "spot", "each option once", at_server=False),
    _at("a label of the operator", "spec.pod.labels", {"posttrain.dev/job": "other"}, "posttrain.dev/job",
        "not those of posttrain, JobSet, Job and Kueue", at_server=False),
    _at("a label of Kueue", "spec.pod.labels", {"kueue.x-k8s.io/queue-name": "a"}, "queue-name",
        "not those of posttrain, JobSet, Job and Kueue", at_server=False),
    _at("a label's key with a space", "spec.pod.labels", {"my team": "a"}, "my team", "keys such as team",
        at_server=False),
    _at("a label's value with a space", "spec.pod.labels.team", "a b", "a b", "a label's value"),
    _at("an annotation of JobSet", "spec.pod.annotations", {"alpha.jobset.sigs.k8s.io/exclusive-topology": "a"},
        "exclusive-topology", "not those of posttrain, JobSet", at_server=False),
    _at("a selector of chips", "spec.pod.nodeSelector", {"cloud.google.com/gke-tpu-topology": "2x2"}, "2x2",
        "which spec.accelerator decides", at_server=False),
    Wrong("a selector of nodes that are not made yet",
          {"spec.pod": {"nodeSelector": {"disk": "fast"}}, "spec.capacity": [{"type": "spot"}],
           "spec.accelerator": {"type": "v6e-4"}},
          "spec.pod.nodeSelector", "fast", "nodes that the operator makes have no labels of yours"),
    Wrong("a toleration of others' node pools", {"spec.pod": {"tolerations": [{"key": "posttrain.dev/node-pool"}]}},
          "spec.pod.tolerations[0].key", "posttrain.dev/node-pool", "any taint but posttrain.dev/node-pool"),
    Wrong("a toleration of everything", {"spec.pod": {"tolerations": [{"operator": "Exists"}]}},
          "spec.pod.tolerations[0].key", "(missing)", "is required"),
    Wrong("a value that is not compared",
          {"spec.pod": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}},
          "spec.pod.tolerations[0].value", "b", "because operator is Exists"),
    Wrong("seconds of another effect", {"spec.pod": {"tolerations": [{"key": "a", "tolerationSeconds": 3}]}},
          "spec.pod.tolerations[0].tolerationSeconds", "3", "together with effect: NoExecute"),
    Wrong("names of the cluster on the node's network",
          {"spec.pod": {"hostNetwork": True, "dnsPolicy": "ClusterFirst"}},
          "spec.pod.dnsPolicy", "ClusterFirst", "ClusterFirstWithHostNet or unset"),
    _at("names of the node", "spec.pod.dnsPolicy", "Default", "Default",
        "one of ClusterFirst, ClusterFirstWithHostNet"),
    Wrong("root that is not root", {"spec.pod": {"securityContext": {"runAsUser": 0, "runAsNonRoot": True}}},
          "spec.pod.securityContext.runAsNonRoot", "true", "because runAsUser is 0"),
    Wrong("privileged without escalation",
          {"spec.pod": {"containerSecurityContext": {"privileged": True, "allowPrivilegeEscalation": False}}},
          "spec.pod.containerSecurityContext.allowPrivilegeEscalation", "false", "because privileged is true"),
    _at("an affinity that Kubernetes does not know", "spec.pod.affinity.nodeAffinty", {}, "{}",
        "accepted: nodeAffinity, podAffinity, podAntiAffinity", at_server=False),
    Wrong("an affinity to a node pool",
          {"spec.pod": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
              "nodeSelectorTerms": [{"matchExpressions": [{"key": "cloud.google.com/gke-nodepool",
                                                           "operator": "In", "values": ["a"]}]}]}}}}},
          "spec.pod.affinity.nodeAffinity", "cloud.google.com/gke-nodepool", "knows the node pools that it made",
          at_server=False),
    _at("a restart policy", "spec.pod.restartPolicy", "OnFailure", "OnFailure", "spec.pod has no field restartPolicy"),
    Wrong("an init container of the operator's name",
          {"spec.pod": {"initContainers": [{"name": "trainer-0", "command": ["a"]}]}},
          "spec.pod.initContainers[0].name", "trainer-0", "a name that no container of the operator has"),
    Wrong("an init container that trains", {"spec.pod": {"initContainers": [{"name": "a"}]}},
          "spec.pod.initContainers[0].command", "[]", "a command, or another image"),
    Wrong("an init container with a volume that is not there",
          {"spec.pod": {"initContainers": [{"name": "a", "image": "b", "volumeMounts": [
              {"name": "runs", "mountPath": "/runs"}]}]}},
          "spec.pod.initContainers", "(not shown)", "volumes in spec.volumes", at_server=False),
    Wrong("a token in the open of an init container",
          {"spec.pod": {"initContainers": [{"name": "a", "image": "b", "env": [{"name": "HF_TOKEN", "value": "x"}]}]}},
          "spec.pod.initContainers[0].env[0].value", "(not shown)", "secretKeyRef"),
    _at("two volumes at one path", "spec.volumes", [{"name": n, "mountPath": "/a", "emptyDir": {}} for n in ("a", "b")],
        "/a", "different mount paths"),
    _at("two volumes of one name", "spec.volumes",
        [{"name": "a", "mountPath": p, "emptyDir": {}} for p in ("/a", "/b")], "/a", "different names"),
    Wrong("zones of nodes that are there", {"spec.capacity": [{"type": "existing", "zones": ["us-east5-a"]}]},
          "spec.capacity[0].zones", "us-east5-a", "unset with type: existing"),
    Wrong("a node pool for a laptop", {"spec.accelerator": {"type": "cpu-8"}, "spec.capacity": [{"type": "spot"}]},
          "spec.capacity", "spot", "existing only"),
    Wrong("answers to no questions", {**SFT, "spec.evaluation": {"answers": ["exactMatch"]}},
          "spec.evaluation.answers", "exactMatch", "together with data.eval"),
    Wrong("labels of nothing", {**SFT, "spec.data.eval": {"uri": "gs://b/e.jsonl"},
                                "spec.evaluation": {"answers": ["exactMatch"], "labels": ["a"]}},
          "spec.evaluation.labels", "a", "together with answers: accuracy or macroF1"),
    # Pairs and teachers
    Wrong("half a pair in a batch", {**DPO, "spec.training.batchSize": 15}, "spec.training.batchSize", "15",
          "an even number, because dpo trains on pairs"),
    Wrong("a pair in two micro-batches", {**DPO, "spec.training": {"batchSize": 6, "microBatchSize": 3}},
          "spec.training.microBatchSize", "3", "an even number, because a pair is never split"),
    Wrong("smoothed labels without a use", {**DPO, "spec.algorithm": {"dpo": {"loss": "ipo", "labelSmoothing": 0.1}}},
          "spec.algorithm.dpo.labelSmoothing", "0.1", "0, because only sigmoid, robust and simpo"),
    Wrong("a margin without a use", {**DPO, "spec.algorithm": {"dpo": {"margin": 1.0}}},
          "spec.algorithm.dpo.margin", "1.0", "unset, because only simpo"),
    Wrong("labels as often wrong as right", {**DPO, "spec.algorithm": {"dpo": {"labelSmoothing": 0.5}}},
          "spec.algorithm.dpo.labelSmoothing", "0.5", "to 0.49"),
    Wrong("beta of nothing", {**DPO, "spec.algorithm": {"dpo": {"beta": 0}}}, "spec.algorithm.dpo.beta", "0",
          "above 0"),
    Wrong("no teacher", {**SFT, "spec.algorithm": {"distill": {}}}, "spec.algorithm.distill.teacher", "", "a teacher"),
    Wrong("a teacher who is not asked", {**SFT, "spec.algorithm": {"distill": {
              "mode": "offline", "teacher": {"uri": "random://tiny"}}}},
          "spec.algorithm.distill.teacher", "random://tiny", "none where mode is offline"),
    Wrong("fewer outcomes than the data have", {**SFT, "spec.algorithm": {"distill": {"mode": "offline", "topK": 5}}},
          "spec.algorithm.distill.topK", "5", "0 where mode is offline"),
    Wrong("a mixture of one", {**SFT, "spec.algorithm": {"distill": {
              "mode": "online", "studentShare": 0.5, "teacher": {"uri": "random://tiny"}}}},
          "spec.algorithm.distill.studentShare", "0.5", "1, because only mode on-policy"),
    Wrong("ppo without reward", {**PPO, "spec.rewards": GONE}, "spec.rewards", "[]", "at least one reward"),
    Wrong("ppo without room for a prompt", {**PPO, "spec.rollout.maxNewTokens": 256},
          "spec.rollout.maxNewTokens", "256", "less than training.sequenceLength"),
    Wrong("half the samples of a prompt", {"spec.algorithm": {"ppo": {"samplesPerPrompt": 3}}},
          "spec.training.batchSize", "16", "a multiple of algorithm.ppo.samplesPerPrompt"),
    Wrong("a critic head from a model",
          {"spec.algorithm": {"ppo": {"critic": {"kind": "head", "uri": "random://tiny"}}}},
          "spec.algorithm.ppo.critic.uri", "random://tiny", "a run's export/critic"),
    Wrong("a critic's revision without a hub",
          {"spec.algorithm": {"ppo": {"critic": {"kind": "model", "uri": "gs://b/m", "revision": "main"}}}},
          "spec.algorithm.ppo.critic.revision", "main", "an hf:// uri"),
    Wrong("a critic model of its own beside adapters",
          {"spec.algorithm": {"ppo": {"critic": {"kind": "model", "uri": "gs://b/m"}}}, "spec.training.lora": {}},
          "spec.algorithm.ppo.critic.uri", "gs://b/m", "not supported yet; accepted: unset"),
    Wrong("a command in the operator's image", {"spec.runtime": {"container": {"command": ["true"]}}},
          "spec.image", "(missing)", "an image with the program that the runtime names"),
    Wrong("two runtimes", {"spec.image": "i", "spec.runtime": {"native": {}, "container": {"command": ["true"]}}},
          "spec.runtime", "container", "at most one of native, maxtext, container"),
    Wrong("a container without a command", {"spec.image": "i", "spec.runtime": {"container": {"command": []}}},
          "spec.runtime.container.command", "[]", "a list of 1 to 64"),
    # Not supported yet
    _at("adapters on a layer that no model has", "spec.training.lora.targets", "router", "router",
        "all-linear, attention, mlp"),
    Wrong("a reward of the hub", {"spec.rewards": [{"python": {"uri": "hf://a/r.py"}}]},
          "spec.rewards[0].python.uri", "hf://a/r.py", "a URI of a Python file"),
    Wrong("a reward that is no Python", {"spec.rewards": [{"python": {"uri": "gs://b/r.txt"}}]},
          "spec.rewards[0].python.uri", "gs://b/r.txt", "a URI of a Python file"),
    Wrong("a builtin in batches", {"spec.rewards": [{"builtin": "gsm8k", "batched": True}]},
          "spec.rewards[0].batched", "true", "only a python reward"),
    Wrong("tokens of another reward", {"spec.rewards": [{"builtin": "gsm8k", "maxTokens": 9}]},
          "spec.rewards[0].maxTokens", "9", "only the builtin length"),
    Wrong("a buffer of another reward", {"spec.rewards": [{"builtin": "gsm8k", "bufferTokens": 9}]},
          "spec.rewards[0].bufferTokens", "9", "only the builtin length"),
    Wrong("a judge without a name", {"spec.rewards": [{"judge": {"url": "https://a/v1", "model": "m"}}]},
          "spec.rewards[0].name", "(missing)", "a judge has none of its own"),
    Wrong("a judge that is no endpoint",
          {"spec.rewards": [{"name": "j", "judge": {"url": "file:///a", "model": "m"}}]},
          "spec.rewards[0].judge.url", "file:///a", "a URL: https://"),
    Wrong("a judge without a scale",
          {"spec.rewards": [{"name": "j", "judge": {"url": "https://a/v1", "model": "m", "lowest": 10}}]},
          "spec.rewards[0].judge.highest", "10.0", "above lowest"),
    # Environments
    Wrong("an environment for preferences", {**DPO, "spec.environment": {"tools": [{"builtin": "lookup"}]}},
          "spec.environment", "lookup", "only grpo, ppo and sft's evaluation"),
    _at("an environment of nothing", "spec.environment", {"maxTurns": 2}, "2", "exactly one of tools, python"),
    Wrong("an environment of two kinds",
          {"spec.environment": {"tools": [{"builtin": "lookup"}], "python": {"uri": "file:///e.py"}}},
          "spec.environment", "lookup", "exactly one of tools, python"),
    Wrong("a tool of no kind", {"spec.environment": {"tools": [{}]}},
          "spec.environment.tools[0]", "{}", "exactly one of builtin, python"),
    Wrong("a tool that does not exist", {"spec.environment": {"tools": [{"builtin": "search"}]}},
          "spec.environment.tools[0].builtin", "search", "one of calculator, lookup"),
    Wrong("more node pools than Kueue can name", {"spec.accelerator": {"type": "v6e-8", "slices": 9},
          "spec.training.batchSize": 36, "spec.queue": "team", "spec.capacity": [{"type": "spot"}]},
          "spec.accelerator.slices", "9", "at most 8 with queue"),
    Wrong("a ProvisioningRequest beside Kueue's", {"spec.accelerator": {"type": "v6e-8"}, "spec.queue": "team",
          "spec.capacity": [{"type": "queuedProvisioning"}]},
          "spec.capacity", "queuedProvisioning", "queuedProvisioning without queue only"),
    Wrong("a ProvisioningRequest for two slices", {"spec.accelerator": {"type": "v6e-8", "slices": 2},
          "spec.capacity": [{"type": "spot"}, {"type": "queuedProvisioning"}]},
          "spec.accelerator.slices", "2", "1 with capacity of type queuedProvisioning"),
    _at("adapter beside weights", "spec.export.mergeLora", False, "false", "false only with format: peft"),
    _at("servers alone without pathways", "spec.pathways.headless", True, "true",
        "false, because pathways.enabled is not true", at_server=False),
    Wrong("a command beside servers alone", {"spec.image": "i", "spec.pathways": {"headless": True},
          "spec.runtime": {"container": {"command": ["true"]}}},
          "spec.runtime", "true", "unset, because pathways.headless starts no program"),
    Wrong("fewer slices with our own trainer", {"spec.accelerator": {"type": "v6e-16", "slices": 2},
          "spec.training.batchSize": 32, "spec.pathways": {"elasticSlices": 1}},
          "spec.pathways.elasticSlices", "1", "0 with posttrain's own trainer"),
    Wrong("images for preferences", {"spec.model.images": True, "spec.algorithm": {"dpo": {}}},
          "spec.model.images", "true", "not supported yet; accepted: false, or true with algorithm.sft"),
    Wrong("a draft without eyes", {"spec.model.images": True, "spec.rollout": {"speculative": {"ngram": {}}}},
          "spec.rollout.speculative", "{", "not supported yet; accepted: unset with model.images"),
    Wrong("an engine without eyes", {"spec.model.images": True, "spec.rollout": {"engine": "vllm"}},
          "spec.rollout.engine", "vllm", "not supported yet; accepted: native with model.images"),
    Wrong("adapters apart from a tower",
          {"spec.model.images": True, "spec.export.format": "peft", "spec.training.lora": {}},
          "spec.export.format", "peft", "not supported yet; accepted: safetensors or none, with model.images"),
    Wrong("no slice left", {"spec.accelerator": {"type": "v6e-16"}, "spec.image": "i",
          "spec.pathways": {"elasticSlices": 1}, "spec.runtime": {"container": {"command": ["true"]}}},
          "spec.pathways.elasticSlices", "1", "less than accelerator.slices"),
    _at("a workload priority without a queue", "spec.queuePriorityClassName", "high", "high", "together with queue"),
    Wrong("pathways on a disk that nobody shares", {"spec.accelerator": {"type": "v6e-16"},
          "spec.output.uri": "file:///runs", "spec.training.batchSize": 16, "spec.pathways": {"enabled": True}},
          "spec.output.uri", "file:///runs", "gs://…, because pathways.enabled is true", at_server=False),
    Wrong("pathways on a laptop", {"spec.output.uri": "gs://b/runs", "spec.pathways": {"enabled": True}},
          "spec.pathways.enabled", "true", "Pathways does not run on", at_server=False),
    _at("a server image that nothing runs", "spec.pathways.serverImage", "i", "i",
        "unset, because pathways.enabled is not true", at_server=False),
    _at("a proxy image that nothing runs", "spec.pathways.proxyImage", "i", "i",
        "unset, because pathways.enabled is not true", at_server=False),
    Wrong("more tokens at least than at most", {"spec.rollout": {"maxNewTokens": 8, "minNewTokens": 9}},
          "spec.rollout.minNewTokens", "9", "at most maxNewTokens"),
    _at("a share of more than all", "spec.rollout.minP", 1.5, "1.5", "to 1"),
    _at("no row to sample in", "spec.rollout.slots", 0, "0", "from 1"),
    Wrong("vllm without its fields", {"spec.rollout.engine": "vllm"},
          "spec.rollout.vllm", "(missing)", "set where engine is vllm"),
    _at("fields of vllm for the native engine", "spec.rollout.vllm", {"memoryShare": 0.3}, "memoryShare",
        "set where engine is vllm"),
    Wrong("vllm for an algorithm that does not correct", {**SFT, "spec.rollout": {"engine": "vllm", "vllm": {}}},
          "spec.rollout.engine", "vllm", "native, or vllm with grpo or ppo"),
    Wrong("slots of vllm", {"spec.rollout": {"maxNewTokens": 8, "engine": "vllm", "vllm": {}, "slots": 4}},
          "spec.rollout.slots", "4", "unset with engine: vllm"),
    Wrong("hotter than vLLM samples",
          {"spec.rollout": {"maxNewTokens": 8, "engine": "vllm", "vllm": {}, "temperature": 2.5}},
          "spec.rollout.temperature", "2.5", "0.01 to 2 with engine: vllm"),
    Wrong("cooler than vLLM samples",
          {"spec.rollout": {"maxNewTokens": 8, "engine": "vllm", "vllm": {}, "temperature": 0.001}},
          "spec.rollout.temperature", "0.001", "0.01 to 2 with engine: vllm"),
    Wrong("a server that cannot read weights",
          {"spec.rollout": {"maxNewTokens": 8, "engine": "vllm", "vllm": {"endpoint": "http://vllm:8000"}}},
          "spec.rollout.vllm.weightsDirectory", "(missing)", "a directory that the server sees"),
    Wrong("a server that is no URL",
          {"spec.rollout": {"maxNewTokens": 8, "engine": "vllm", "vllm": {"endpoint": "vllm:8000"}}},
          "spec.rollout.vllm.endpoint", "vllm:8000", "http"),
    Wrong("weights at a relative path",
          {"spec.rollout": {"maxNewTokens": 8, "engine": "vllm", "vllm": {"weightsDirectory": "weights"}}},
          "spec.rollout.vllm.weightsDirectory", "weights", "/"),
    Wrong("a model's name without a server",
          {"spec.rollout": {"maxNewTokens": 8, "engine": "vllm", "vllm": {"model": "m"}}},
          "spec.rollout.vllm.model", "m", "together with endpoint"),
    Wrong("a key without a server",
          {"spec.rollout": {"maxNewTokens": 8, "engine": "vllm", "vllm": {"apiKeyEnv": "KEY"}}},
          "spec.rollout.vllm.apiKeyEnv", "KEY", "together with endpoint"),
    Wrong("memory of somebody else's device",
          {"spec.rollout": {"maxNewTokens": 8, "engine": "vllm", "vllm": {
              "endpoint": "http://vllm:8000", "weightsDirectory": "/w", "memoryShare": 0.5}}},
          "spec.rollout.vllm.memoryShare", "0.5", "unset with an endpoint"),
    _at("nobody who guesses", "spec.rollout.speculative", {}, "{}", "exactly one of ngram, draft"),
    _at("two who guess", "spec.rollout.speculative", {"ngram": {"tokens": 3}, "draft": {"uri": "random://tiny"}},
        "random://tiny", "exactly one of ngram, draft"),
    _at("a guess of no tokens", "spec.rollout.speculative.ngram.tokens", 0, "0", "from 1 to 16"),
    Wrong("a draft without a hub's revision",
          {"spec.rollout.speculative": {"draft": {"uri": "random://tiny", "revision": "main"}}},
          "spec.rollout.speculative.draft.revision", "main", "only hf:// models have revisions"),
    Wrong("guesses for another engine",
          {"spec.rollout": {"maxNewTokens": 8, "engine": "vllm", "vllm": {}, "speculative": {"ngram": {"tokens": 3}}}},
          "spec.rollout.speculative", "3", "only the native engine"),
    Wrong("a sampler of one device", {"spec.rollout.placement": "disaggregated", "spec.accelerator.type": "cpu-1"},
          "spec.rollout.placement", "disaggregated", "colocated, because cpu-1 (1 virtual device) cannot be split",
          at_server=False),
    Wrong("a split for vllm", {**SPLIT, "spec.rollout.engine": "vllm", "spec.rollout.vllm": {}},
          "spec.rollout.placement", "disaggregated", "only the native engine's chips are split"),
    _at("a share without a split", "spec.rollout.samplerShare", 0.5, "0.5", "placement: disaggregated"),
    Wrong("a share of half a device", {**SPLIT, "spec.rollout.samplerShare": 0.3}, "spec.rollout.samplerShare", "0.3",
          "a multiple of 1/4 between 0 and 1, because cpu-4 (4 virtual devices) has 4 virtual devices: 0.25, 0.5, 0.75",
          at_server=False),
    Wrong("all chips sample", {**SPLIT, "spec.rollout.samplerShare": 1.0},
          "spec.rollout.samplerShare", "1", "0.25, 0.5, 0.75", at_server=False),
    Wrong("a share of half a slice", {**SLICES, "spec.rollout.samplerShare": 0.5}, "spec.rollout.samplerShare", "0.5",
          "3 x v6e-16 (48 chips) has 3 slices: 0.333, 0.667", at_server=False),
    Wrong("a share of half a row of chips", {**SPLIT, "spec.accelerator.type": "v6e-4",
          "spec.rollout.samplerShare": 0.25}, "spec.rollout.samplerShare", "0.25",
          "a multiple of 1/2 between 0 and 1, because v6e-4 (4 chips) has 2 chips along its longest side: 0.5",
          at_server=False),
    Wrong("a share of half a row of hosts", {**SLICES, "spec.accelerator": {"type": "v6e-16"},
          "spec.rollout.samplerShare": 0.25}, "spec.rollout.samplerShare", "0.25",
          "v6e-16 (16 chips) has 2 hosts along its longest side: 0.5", at_server=False),
    Wrong("a split over trainers", {**SPLIT, "spec.accelerator": {"type": "v6e-16"}}, "spec.rollout.placement",
          "disaggregated", "colocated, because one process must drive all chips to move weights between them, and "
          "v6e-16 (16 chips) is 4 hosts with a trainer on each", at_server=False),
    Wrong("a mesh of all chips where some sample", {**SPLIT, "spec.training.parallelism": {"fsdp": 4}},
          "spec.training.parallelism", "{data: auto, fsdp: 4, tensor: auto, sequence: auto, expert: auto}",
          "product is 2, the JAX devices of cpu-4 (4 virtual devices) that train", at_server=False),
    Wrong("a sampler for sft", {**SPLIT, **SFT},
          "spec.rollout.placement", "disaggregated", "only grpo, ppo and on-policy"),
    Wrong("a sampler for distillation on data", {**SPLIT, "spec.rewards": GONE,
          "spec.algorithm": {"distill": {"mode": "online", "teacher": {"uri": "random://tiny"}}}},
          "spec.rollout.placement", "disaggregated", "only grpo, ppo and on-policy"),
    _at("stale samples of the same chips", "spec.rollout.maxStaleness", 1, "1",
        "0, or together with placement: disaggregated"),
    Wrong("half a batch stale", {**SPLIT, "spec.rollout.maxStaleness": 3, "spec.algorithm.grpo.updatesPerBatch": 2},
          "spec.rollout.maxStaleness", "3", "a multiple of updatesPerBatch"),
    Wrong("a lower clip of weights", {"spec.algorithm": {"grpo": {"loss": "cispo", "clipLow": 0.2}}},
          "spec.algorithm.grpo.clipLow", "0.2", "unset, because cispo"),
    Wrong("a dual clip of weights", {"spec.algorithm": {"grpo": {"loss": "cispo", "dualClip": 3}}},
          "spec.algorithm.grpo.dualClip", "3", "unset, because cispo"),
    Wrong("half a batch of ppo stale", {**SPLIT, **PPO, "spec.rollout.maxStaleness": 2},
          "spec.rollout.maxStaleness", "2", "a multiple of updatesPerBatch"),
    _at("preflight", "spec.preflight", "Maybe", "Maybe", "Enforce, Warn, Skip"),
    Wrong("a container to compile", {**CONTAINER, "spec.preflight": "Warn"}, "spec.preflight", "Warn", "Skip or unset"),
    Wrong("elastic without pathways", {**CONTAINER, "spec.accelerator.slices": 2, "spec.pathways.elasticSlices": 1},
          "spec.pathways.elasticSlices", "1", "0, because pathways.enabled is not true", at_server=False),
    _at("quantization without lora", "spec.training.quantization", {}, "", "or together with training.lora"),
    _at("an adapter of no lora", "spec.export.format", "peft", "peft", "needs training.lora"),
    Wrong("a self-teacher online", _self_taught({}, mode="online"),
          "spec.algorithm.distill.mode", "online", "on-policy where selfTeacher is set"),
    Wrong("a self-teacher on a mixture", _self_taught({}, studentShare=0.5),
          "spec.algorithm.distill.studentShare", "0.5", "1 where selfTeacher is set"),
    Wrong("a privileged context without the prompt", _self_taught({"privilegedContext": "a hint"}),
          "spec.algorithm.distill.selfTeacher.privilegedContext", "a hint", "text with {prompt}"),
    Wrong("a self-teacher that knows nothing more", _self_taught({"weights": "current"}),
          "spec.algorithm.distill.selfTeacher.weights", "current", "initial or average without privilegedContext"),
    Wrong("an average that is not kept", _self_taught({"weights": "average"}),
          "spec.algorithm.distill.selfTeacher.weights", "average", "unless training.ema keeps an average"),
    Wrong("held-out data of a self-teacher", {**_self_taught({}), "spec.data.eval": {"uri": "file:///eval.jsonl"}},
          "spec.data.eval", "", "or together with rewards"),
)  # fmt: skip


def patched(patch: dict[str, Any]) -> dict[str, Any]:
    """The good job with some values changed or gone."""
    document = copy.deepcopy(GOOD)
    for path, value in patch.items():
        *parents, last = path.split(".")
        node = document
        for step in parents:
            node = node.setdefault(step, {})
        if value is GONE:
            node.pop(last, None)
        else:
            node[last] = copy.deepcopy(value)
    return document


def refusal(document: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        parse_job(document)
    return caught.value


def test_the_good_jobs_are_good() -> None:
    parse_job(GOOD)
    parse_job(patched(SFT))


def test_null_is_absence_as_on_the_api_server() -> None:
    assert parse_job(patched({"spec.queue": None, "spec.training.optimizer": None})) == parse_job(GOOD)


def test_there_are_at_least_forty_mistakes_each_of_its_own_name() -> None:
    assert len({wrong.name for wrong in WRONG}) == len(WRONG) >= 40


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_mistake_is_refused_with_field_value_and_what_is_accepted(wrong: Wrong) -> None:
    refused = refusal(patched(wrong.patch))
    findings = {finding.field: finding for finding in refused.findings}
    assert wrong.field in findings, list(findings)
    finding = findings[wrong.field]
    assert wrong.value in finding.value
    assert wrong.words in f"{finding.accepted}; hint: {finding.hint}"
    for word in ("pydantic", "Input should", "validation error", "type=", "Traceback", "model_type", "literal_error"):
        assert word not in str(refused), "the language of the parser"


def test_every_rule_refuses_some_wrong_manifest() -> None:
    messages = {finding.accepted for wrong in WRONG for finding in refusal(patched(wrong.patch)).findings}
    # The schema refuses a wrong name before its rule does, and the table of accelerators speaks for its rules.
    rules = [rule for rule in RULES if rule.scope and rule.predicate.holds is not checked_by_table]
    assert {rule.accepted for rule in rules} <= messages


def test_every_mistake_is_reported_and_not_only_the_first() -> None:
    document = patched({"spec.training.batchSize": "16", "spec.output.uri": "/runs", "spec.modle": {}})
    fields = {finding.field for finding in refusal(document).findings}
    assert fields == {"spec.training.batchSize", "spec.output.uri", "spec.modle"}


def test_a_secret_is_never_shown() -> None:
    for env in ([{"name": "HF_TOKEN", "value": "hf_abc"}], [{"name": "A", "value": "hf_abc" * 1000}]):
        assert "hf_abc" not in str(refusal(patched({"spec.env": env})))


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("a: [1", "line 1", "is not YAML"),
        ("a: 1\nb: c: d", "line 2", "is not YAML"),
        ("a: 1\n\tb: 2", "line 2", "indent with spaces"),
        ("spec:\n  training: {steps: 1}\n  training: {steps: 2}", "line 3", "written twice"),
        ("spec:\n  runPolicy: {suspend: on}", "line 2", "write true for the boolean"),
        ("spec:\n  columns: {prompt: y}", "line 2", '"y" for the text'),
        ("a: 1\n---\nb: 2", "file", "one YAML document"),
        ("", "file", "one YAML document"),
        ("# nothing", "file", "one YAML document"),
        ("a: !!python/name:os.system", "line 1", "is a tag"),
        ("a: \x07", "file", "is not YAML text"),
        ("[1, 2]", "job", "a map with apiVersion"),
        ("text", "job", "a map with apiVersion"),
        ("a: *b", "line 1", "undefined alias"),
    ],
)
def test_text_that_is_no_job_names_the_line(text: str, field: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_job(text)
    assert caught.value.findings[0].field.startswith(field)
    assert words in str(caught.value)
