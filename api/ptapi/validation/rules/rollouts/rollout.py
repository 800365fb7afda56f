"""Rules for rollout: lengths, speculation, what vLLM needs, where and how far ahead of training samples are drawn."""

from ptapi.validation.predicate import Predicate, compare, each_once, equals, has, is_multiple, is_true, matches, unset
from ptapi.validation.rule import SPEC, Rule, Scope
from ptapi.validation.rules.algorithm import USES_NO_REWARDS, USES_REWARDS

LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.01, 2.0
"""vLLM raises what is below the first to it, and refuses what is above the second."""
HOLDS_BOTH = "which holds the prompt and the completion"


def _is_whole_batches(algorithm: str) -> Predicate:
    updates = f"algorithm.{algorithm}.updatesPerBatch"
    return unset(f"algorithm.{algorithm}") | is_multiple("rollout.maxStaleness", updates)


_ROLLOUT = Scope("spec.rollout")
_VLLM = Scope("spec.rollout.vllm")

RULES: tuple[Rule, ...] = (
    SPEC.less_than("rollout.maxNewTokens", "training.sequenceLength", HOLDS_BOTH, unless=USES_NO_REWARDS),
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
        _is_whole_batches("grpo") & _is_whole_batches("ppo") & _is_whole_batches("raft"),
    ),
    SPEC.rule(
        "rollout.placement",
        "colocated, because only grpo, ppo, raft and on-policy distillation can sample on other chips",
        equals("rollout.placement", "colocated")
        | USES_REWARDS
        | (has("algorithm.distill") & equals("algorithm.distill.mode", "on-policy")),
    ),
    SPEC.rule(
        "rollout.routingReplay",
        "false, or true with grpo or ppo, whose losses compare the trainer's log-probs with the sampler's",
        ~is_true("rollout.routingReplay") | has("algorithm.grpo") | has("algorithm.ppo"),
    ),
    _ROLLOUT.rule(
        "routingReplay",
        "false with engine: vllm, whose answers do not hold the experts of a token",
        ~is_true("routingReplay") | equals("engine", "native"),
        "engine: native",
    ),
    _ROLLOUT.rule(
        "vllm",
        "set where engine is vllm, and nowhere else",
        has("vllm").iff(equals("engine", "vllm")),
        "engine: vllm, vllm: {endpoint: http://…, weightsDirectory: /…}",
    ),
    SPEC.rule(
        "rollout.engine",
        "native, or vllm with grpo or ppo, whose loss corrects for the log-probs of another program, or raft",
        unset("rollout") | equals("rollout.engine", "native") | USES_REWARDS,
    ),
    _ROLLOUT.rule(
        "slots",
        "unset with engine: vllm, which decides itself how many rows it runs",
        unset("slots") | equals("engine", "native"),
        "vllm serve --max-num-seqs",
    ),
    _ROLLOUT.rule(
        "temperature",
        f"{LEAST_TEMPERATURE:g} to {MOST_TEMPERATURE:g} with engine: vllm, which knows no other",
        equals("engine", "native")
        | (compare("temperature", ">=", LEAST_TEMPERATURE) & compare("temperature", "<=", MOST_TEMPERATURE)),
    ),
    _VLLM.rule(
        "weightsDirectory",
        "a directory that the server sees under the same path, because it reads new weights there",
        unset("endpoint") | has("weightsDirectory"),
        "weightsDirectory: /shared/weights, on a volume of both pods",
    ),
    _VLLM.rule("endpoint", "the server's root, without /v1", unset("endpoint") | ~matches("endpoint", "/v1/?$")),
    *(_VLLM.unset_unless(field, has("endpoint"), "or together with endpoint") for field in ("model", "apiKeyEnv")),
    _VLLM.rule(
        "memoryShare",
        "unset with an endpoint, whose server has its own devices",
        unset("memoryShare") | unset("endpoint"),
        "vllm serve --gpu-memory-utilization",
    ),
)
