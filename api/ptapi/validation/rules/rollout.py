"""Rules for rollout: lengths, speculation, and where and how far ahead of training samples are drawn."""

from ptapi.validation.condition import Condition, compare, each_once, equals, has, is_multiple, unset
from ptapi.validation.rule import SPEC, Rule, Scope
from ptapi.validation.rules.algorithm import USES_REWARDS


def _is_whole_batches(algorithm: str) -> Condition:
    updates = f"algorithm.{algorithm}.updatesPerBatch"
    return unset(f"algorithm.{algorithm}") | is_multiple("rollout.maxStaleness", updates)


_ROLLOUT = Scope("spec.rollout")

RULES: tuple[Rule, ...] = (
    _ROLLOUT.rule(
        "minNewTokens", "at most maxNewTokens", unset("minNewTokens") | compare("minNewTokens", "<=", "maxNewTokens")
    ),
    _ROLLOUT.rule("stop", "each text once", each_once("stop")),
    Scope("spec.rollout.speculative").exactly_one("ngram", "draft", hint="speculative: {ngram: {}}"),
    _ROLLOUT.unset_unless(
        "speculative", equals("engine", "native"), "because only the native engine is told how to speculate"
    ),
    _ROLLOUT.unset_unless(
        "samplerShare", equals("placement", "disaggregated"), "or together with placement: disaggregated"
    ),
    _ROLLOUT.rule(
        "placement",
        "colocated, because vllm samples where it runs; only the native engine's chips are split",
        equals("placement", "colocated") | equals("engine", "native"),
    ),
    _ROLLOUT.rule(
        "maxStaleness",
        "0, or together with placement: disaggregated, because the same chips do not sample while they train",
        equals("maxStaleness", 0) | equals("placement", "disaggregated"),
    ),
    SPEC.rule(
        "rollout.maxStaleness",
        "a multiple of updatesPerBatch, because all updates of a batch use samples of the same weights",
        _is_whole_batches("grpo") & _is_whole_batches("ppo"),
    ),
    SPEC.rule(
        "rollout.placement",
        "colocated, because only grpo, ppo and on-policy distillation can sample on other chips",
        equals("rollout.placement", "colocated")
        | USES_REWARDS
        | (has("algorithm.distill") & equals("algorithm.distill.mode", "on-policy")),
    ),
)
