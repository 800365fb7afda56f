"""Rules for the algorithm: which one, what it asks of rewards and environment, and what belongs to one loss alone."""

from __future__ import annotations

from ptapi.validation.condition import Condition, differs, empty, equals, filled, has, one_of, starts_with, unset
from ptapi.validation.rule import Rule, exactly_one, unset_unless

USES_REWARDS = has("algorithm.grpo") | has("algorithm.ppo")
# Not `~USES_REWARDS`, so that no rule stored in a cluster changes its text.
USES_NO_REWARDS = Condition(
    "!has(self.algorithm.grpo) && !has(self.algorithm.ppo)", lambda spec: not spec.algorithm.learns_from_rewards
)

RULES: tuple[Rule, ...] = (
    exactly_one("spec", "sft", "dpo", "grpo", "distill", "ppo", parent="algorithm", hint="algorithm: {sft: {}}"),
    Rule(
        "spec",
        "rewards",
        "at least one reward, because grpo and ppo learn from rewards alone",
        USES_NO_REWARDS | filled("rewards") | (has("environment") & has("environment.python")),
        "rewards: [{builtin: gsm8k}]",
    ),
    Rule(
        "spec",
        "rewards",
        "none without data.eval, because only grpo and ppo learn from rewards: others judge held-out answers",
        USES_REWARDS | empty("rewards") | has("data.eval"),
    ),
    unset_unless(
        "spec",
        "environment",
        USES_REWARDS | has("algorithm.sft"),
        "because only grpo, ppo and sft's evaluation speak with an environment",
    ),
    *(
        unset_unless(
            "spec.algorithm.grpo", field, differs("loss", "cispo"), "because cispo only cuts weights above clipHigh"
        )
        for field in ("clipLow", "dualClip")
    ),
    Rule(
        "spec.algorithm.dpo",
        "labelSmoothing",
        "0, because only sigmoid, robust and simpo smooth labels",
        equals("labelSmoothing", 0.0) | one_of("loss", "sigmoid", "robust", "simpo"),
    ),
    unset_unless("spec.algorithm.dpo", "margin", equals("loss", "simpo"), "because only simpo has a margin"),
    unset_unless(
        "spec.algorithm.ppo.critic",
        "revision",
        has("uri") & starts_with("uri", "hf://"),
        "or together with an hf:// uri, which has revisions",
    ),
    Rule(
        "spec.algorithm.ppo.critic",
        "uri",
        "file:///… or gs://… where kind is head: a run's export/critic; kind: model begins from any model",
        equals("kind", "model") | unset("uri") | starts_with("uri", "file://") | starts_with("uri", "gs://"),
    ),
    Rule(
        "spec.algorithm.sft",
        "labelSmoothing",
        "0 with loss: dft, which weighs a token by its own probability",
        differs("loss", "dft") | equals("labelSmoothing", 0.0),
    ),
)
