"""Rules for `rollout.engine`: what vLLM needs, and what belongs to one engine alone."""

from ptapi.validation.condition import compare, equals, has, matches, unset
from ptapi.validation.rule import SPEC, Rule, Scope
from ptapi.validation.rules.algorithm import USES_REWARDS

LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.01, 2.0
"""vLLM raises what is below the first to it, and refuses what is above the second."""
_ROLLOUT = Scope("spec.rollout")
_VLLM = Scope("spec.rollout.vllm")

RULES: tuple[Rule, ...] = (
    _ROLLOUT.rule(
        "vllm",
        "set where engine is vllm, and nowhere else",
        has("vllm").iff(equals("engine", "vllm")),
        "engine: vllm, vllm: {endpoint: http://…, weightsDirectory: /…}",
    ),
    SPEC.rule(
        "rollout.engine",
        "native, or vllm with grpo or ppo, whose loss corrects for the log-probs of another program",
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
