"""Rules for the model: its revision, its adapters, and which of its weights are kept and exported."""

from ptapi.spec import PostTrainJob
from ptapi.validation.condition import (
    Condition,
    differs,
    each_once,
    empty,
    equals,
    has,
    is_true,
    matches,
    starts_with,
    unset,
)
from ptapi.validation.rule import SPEC, Rule, Scope

_TRAINING = Scope("spec.training")
_BETTER_WHEN_LARGER = r"^eval/(reward|pass@|accuracy|exactMatch|exact_match|macroF1|macro_f1|token_accuracy)"


def _forks_from_itself(job: PostTrainJob) -> bool:
    own = f"{job.spec.output.uri.rstrip('/')}/{job.metadata.name}"
    fork = job.spec.checkpoint.fork
    return fork is not None and (fork.uri.rstrip("/") == own or fork.uri.startswith(f"{own}/"))


RULES: tuple[Rule, ...] = (
    *(
        scope.unset_unless("revision", starts_with("uri", "hf://"), "because only hf:// models have revisions")
        for scope in map(Scope, ("spec.model", "spec.rollout.speculative.draft", "spec.algorithm.distill.teacher"))
    ),
    SPEC.rule(
        "training.lora.from",
        "unset with checkpoint.fork: a run begins with the adapters of one or of the other",
        unset("checkpoint.fork") | unset("training.lora") | unset("training.lora.from"),
    ),
    _TRAINING.rule(
        "optimizer.name",
        "adamw, adafactor or lion with lora: muon is made for the model's own matrices",
        unset("lora") | differs("optimizer.name", "muon"),
    ),
    _TRAINING.rule("freeze", "unset with lora, which trains adapters alone", unset("lora") | empty("freeze")),
    SPEC.unset_unless(
        "training.quantization",
        has("training.lora"),
        "or together with training.lora: only frozen weights can be quantized",
    ),
    SPEC.rule(
        "export.format",
        "safetensors or none; peft exports an adapter and needs training.lora",
        differs("export.format", "peft") | has("training.lora"),
    ),
    _TRAINING.rule("freeze", "each pattern once", each_once("freeze")),
    Scope("spec.checkpoint.best").rule(
        "mode",
        "max for this metric, which is better when it is larger",
        equals("mode", "max") | ~matches("metric", _BETTER_WHEN_LARGER),
        "mode: max",
    ),
    Scope("").rule(
        "spec.checkpoint.fork.uri",
        "another run: this is the job's own run directory, which checkpoint.resume continues",
        Condition("", lambda job: not _forks_from_itself(job)),
    ),
    SPEC.unset_unless(
        "checkpoint.best",
        has("data.eval"),
        "or together with data.eval: an evaluation says what is best",
        "data.eval: {uri: …}",
    ),
    SPEC.rule(
        "export.checkpoint",
        "last; best needs checkpoint.best",
        differs("export.checkpoint", "best") | has("checkpoint.best"),
        "checkpoint.best: {}",
    ),
    Scope("spec.export").rule(
        "mergeLora",
        "true, because weights in safetensors have the adapters in them; false only with format: peft",
        unset("mergeLora") | is_true("mergeLora") | equals("format", "peft"),
        "export: {format: peft} writes the adapters alone",
    ),
)
