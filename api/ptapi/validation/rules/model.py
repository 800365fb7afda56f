"""Rules for the model: its revision, its adapters, and which of its weights are kept and exported."""

from ptapi.validation.condition import differs, empty, equals, has, is_true, starts_with, unset
from ptapi.validation.rule import SPEC, Rule, Scope

_TRAINING = Scope("spec.training")

RULES: tuple[Rule, ...] = (
    *(
        scope.unset_unless("revision", starts_with("uri", "hf://"), "because only hf:// models have revisions")
        for scope in (Scope("spec.model"), Scope("spec.rollout.speculative.draft"))
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
