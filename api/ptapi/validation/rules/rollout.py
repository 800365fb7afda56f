"""Rules for rollout: lengths, speculation, and where and how far ahead of training samples are drawn."""

from __future__ import annotations

from ptapi.validation.condition import Condition, compare, equals, has, is_multiple, unset
from ptapi.validation.rule import Rule, exactly_one, unset_unless
from ptapi.validation.rules.algorithm import USES_REWARDS


def _is_whole_batches(algorithm: str) -> Condition:
    updates = f"algorithm.{algorithm}.updatesPerBatch"
    return unset(f"algorithm.{algorithm}") | is_multiple("rollout.maxStaleness", updates)


RULES: tuple[Rule, ...] = (
    Rule(
        "spec.rollout",
        "minNewTokens",
        "at most maxNewTokens",
        unset("minNewTokens") | compare("minNewTokens", "<=", "maxNewTokens"),
    ),
    exactly_one("spec.rollout.speculative", "ngram", "draft", hint="speculative: {ngram: {}}"),
    unset_unless(
        "spec.rollout",
        "speculative",
        equals("engine", "native"),
        "because only the native engine is told how to speculate",
    ),
    unset_unless(
        "spec.rollout",
        "samplerShare",
        equals("placement", "disaggregated"),
        "or together with placement: disaggregated",
    ),
    Rule(
        "spec.rollout",
        "placement",
        "colocated, because vllm samples where it runs; only the native engine's chips are split",
        equals("placement", "colocated") | equals("engine", "native"),
    ),
    Rule(
        "spec.rollout",
        "maxStaleness",
        "0, or together with placement: disaggregated, because the same chips do not sample while they train",
        equals("maxStaleness", 0) | equals("placement", "disaggregated"),
    ),
    Rule(
        "spec",
        "rollout.maxStaleness",
        "a multiple of updatesPerBatch, because all updates of a batch use samples of the same weights",
        _is_whole_batches("grpo") & _is_whole_batches("ppo"),
    ),
    Rule(
        "spec",
        "rollout.placement",
        "colocated, because only grpo, ppo and on-policy distillation can sample on other chips",
        equals("rollout.placement", "colocated")
        | USES_REWARDS
        | (has("algorithm.distill") & equals("algorithm.distill.mode", "on-policy")),
    ),
)
