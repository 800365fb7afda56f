"""Rules for the model: its revision, its adapters, and which of its weights are kept and exported."""

from __future__ import annotations

from ptapi.validation.condition import differs, empty, equals, has, is_true, starts_with, unset
from ptapi.validation.rule import Rule, unset_unless

RULES: tuple[Rule, ...] = (
    *(
        unset_unless(scope, "revision", starts_with("uri", "hf://"), "because only hf:// models have revisions")
        for scope in ("spec.model", "spec.rollout.speculative.draft")
    ),
    Rule(
        "spec",
        "training.lora.from",
        "unset with checkpoint.fork: a run begins with the adapters of one or of the other",
        unset("checkpoint.fork") | unset("training.lora") | unset("training.lora.from"),
    ),
    Rule(
        "spec.training",
        "optimizer.name",
        "adamw, adafactor or lion with lora: muon is made for the model's own matrices",
        unset("lora") | differs("optimizer.name", "muon"),
    ),
    Rule("spec.training", "freeze", "unset with lora, which trains adapters alone", unset("lora") | empty("freeze")),
    unset_unless(
        "spec",
        "training.quantization",
        has("training.lora"),
        "or together with training.lora: only frozen weights can be quantized",
    ),
    Rule(
        "spec",
        "export.format",
        "safetensors or none; peft exports an adapter and needs training.lora",
        differs("export.format", "peft") | has("training.lora"),
    ),
    unset_unless(
        "spec",
        "checkpoint.best",
        has("data.eval"),
        "or together with data.eval: an evaluation says what is best",
        "data.eval: {uri: …}",
    ),
    Rule(
        "spec",
        "export.checkpoint",
        "last; best needs checkpoint.best",
        differs("export.checkpoint", "best") | has("checkpoint.best"),
        "checkpoint.best: {}",
    ),
    Rule(
        "spec.export",
        "mergeLora",
        "true, because weights in safetensors have the adapters in them; false only with format: peft",
        unset("mergeLora") | is_true("mergeLora") | equals("format", "peft"),
        "export: {format: peft} writes the adapters alone",
    ),
)
