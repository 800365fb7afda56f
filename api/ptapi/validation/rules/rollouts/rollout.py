"""Rules for rollout: lengths, speculation, what vLLM needs, where and how far ahead of training samples are drawn."""

from ptapi.validation.predicate import (
    Predicate,
    at,
    compare,
    differs,
    each_once,
    equals,
    has,
    is_multiple,
    is_true,
    matches,
    one_of,
    own,
    unset,
)
from ptapi.validation.rule import SPEC, Rule, Scope
from ptapi.validation.rules.algorithm import USES_NO_REWARDS, USES_REWARDS
from ptapi.validation.rules.chips.capacity import IS_EXISTING
from ptapi.validation.rules.chips.pathways import enabled
from ptapi.validation.rules.pods.runtime_image_queue import IS_NATIVE, POOLS_PER_CHECK

LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.01, 2.0
"""vLLM raises what is below the first to it, and refuses what is above the second."""
HOLDS_BOTH = "which holds the prompt and the completion"


def _is_whole_batches(algorithm: str) -> Predicate:
    updates = f"algorithm.{algorithm}.updatesPerBatch"
    return unset(f"algorithm.{algorithm}") | is_multiple("rollout.maxStaleness", updates)


def samples_natively(rollout: str = "") -> Predicate:
    """Require that the native engine samples, in the trainer or in the samplers' pods; rollout: the path of the map."""
    engine = f"{rollout}separate.engine"
    its_own = unset(f"{rollout}separate") | unset(engine) | equals(engine, "native")
    return equals(f"{rollout}engine", "native") & its_own


def _at_least(times: int, updates: str) -> Predicate:
    cel = f"{own('rollout.maxStaleness')} >= {times} * {own(updates)}"
    return Predicate(cel, lambda spec: at(spec, "rollout.maxStaleness") >= times * at(spec, updates), ">=")


_ROLLOUT = Scope("spec.rollout")
_IS_NATIVE = samples_natively()
_ELSEWHERE = one_of("placement", "disaggregated", "separate")
_VLLM = Scope("spec.rollout.vllm")

RULES: tuple[Rule, ...] = (
    SPEC.less_than("rollout.maxNewTokens", "training.sequenceLength", HOLDS_BOTH, unless=USES_NO_REWARDS),
    _ROLLOUT.rule(
        "minNewTokens", "at most maxNewTokens", unset("minNewTokens") | compare("minNewTokens", "<=", "maxNewTokens")
    ),
    _ROLLOUT.rule("stop", "each text once", each_once("stop")),
    Scope("spec.rollout.speculative").exactly_one("ngram", "draft", "block", hint="speculative: {ngram: {}}"),
    _ROLLOUT.unset_unless("speculative", _IS_NATIVE, "because only the native engine is told how to speculate"),
    _ROLLOUT.unset_unless(
        "samplerShare", equals("placement", "disaggregated"), "or together with placement: disaggregated"
    ),
    _ROLLOUT.rule(
        "separate",
        "set where placement is separate, and nowhere else",
        has("separate").iff(equals("placement", "separate")),
        "placement: separate, separate: {replicas: 2}",
    ),
    _ROLLOUT.rule(
        "separate.engine",
        "vllm, or unset, because engine is vllm",
        unset("separate") | unset("separate.engine") | equals("separate.engine", "vllm") | equals("engine", "native"),
        "engine: native",
    ),
    _ROLLOUT.rule(
        "placement",
        "colocated, because vllm samples where it runs; only the native engine's chips are split",
        differs("placement", "disaggregated") | equals("engine", "native"),
        "placement: separate",
    ),
    _ROLLOUT.rule(
        "maxStaleness",
        "0, or together with placement: disaggregated or separate, or inFlightUpdates: true, because the same chips do "
        "not sample while they train",
        equals("maxStaleness", 0) | _ELSEWHERE | is_true("inFlightUpdates"),
    ),
    SPEC.rule(
        "rollout.placement",
        "colocated with another program, because only posttrain's own trainer has samplers of its own",
        differs("rollout.placement", "separate") | IS_NATIVE,
        "runtime: {native: {}}",
    ),
    SPEC.rule(
        "rollout.placement",
        "colocated or disaggregated with Pathways, whose workers could sample, too",
        differs("rollout.placement", "separate") | unset("pathways") | ~enabled("pathways.enabled"),
        "pathways: {enabled: false}",
    ),
    SPEC.rule(
        "rollout.separate.replicas",
        f"at most {POOLS_PER_CHECK - 1} with queue and capacity that makes node pools, of which one is the trainer's: "
        "an admission check of Kueue can name no more",
        unset("rollout.separate")
        | unset("queue")
        | IS_EXISTING
        | compare("rollout.separate.replicas", "<=", POOLS_PER_CHECK - 1),
    ),
    *(
        SPEC.rule(
            "rollout.maxStaleness",
            f"with inFlightUpdates at least {times}updatesPerBatch of {algorithm}: {why}",
            ~is_true("rollout.inFlightUpdates")
            | unset(f"algorithm.{algorithm}")
            | is_other
            | _at_least(times_, f"algorithm.{algorithm}.updatesPerBatch"),
        )
        for algorithm in ("grpo", "ppo")
        for is_other, times, times_, why in (
            (differs("rollout.placement", "colocated"), "", 1, "a sample that outlives an update is that old"),
            (
                equals("rollout.placement", "colocated"),
                "twice ",
                2,
                "samples are one batch ahead, and one that outlives an update is older still",
            ),
        )
    ),
    SPEC.rule(
        "rollout.inFlightUpdates",
        "false, or true with grpo or ppo, whose losses weigh each token by the weights that drew it",
        ~is_true("rollout.inFlightUpdates") | has("algorithm.grpo") | has("algorithm.ppo"),
    ),
    SPEC.rule(
        "rollout.inFlightUpdates",
        "false with an environment, whose episodes end with their batch",
        ~is_true("rollout.inFlightUpdates") | unset("environment"),
    ),
    _ROLLOUT.rule(
        "inFlightUpdates",
        "false with engine: vllm, speculative or routingReplay: only the native engine's plain rows go on with other "
        "weights",
        ~is_true("inFlightUpdates") | (equals("engine", "native") & unset("speculative") & ~is_true("routingReplay")),
    ),
    SPEC.rule(
        "rollout.maxStaleness",
        "a multiple of updatesPerBatch, because all updates of a batch use samples of the same weights",
        _is_whole_batches("grpo") & _is_whole_batches("ppo") & _is_whole_batches("raft") & _is_whole_batches("sdpo"),
    ),
    SPEC.rule(
        "rollout.placement",
        "colocated, because only grpo, ppo, raft, sdpo and on-policy distillation can sample on other chips",
        equals("rollout.placement", "colocated")
        | USES_REWARDS
        | (has("algorithm.distill") & equals("algorithm.distill.mode", "on-policy")),
    ),
    SPEC.rule(
        "rollout.speculative.block",
        "unset, or set with grpo, ppo, raft, sdpo or on-policy distillation, from whose samples the head learns",
        unset("rollout.speculative")
        | unset("rollout.speculative.block")
        | USES_REWARDS
        | (has("algorithm.distill") & equals("algorithm.distill.mode", "on-policy")),
        "speculative: {ngram: {}}",
    ),
    SPEC.rule(
        "rollout.routingReplay",
        "false, or true with grpo or ppo, whose losses compare the trainer's log-probs with the sampler's",
        ~is_true("rollout.routingReplay") | has("algorithm.grpo") | has("algorithm.ppo"),
    ),
    _ROLLOUT.rule(
        "routingReplay",
        "false with engine: vllm, whose answers do not hold the experts of a token",
        ~is_true("routingReplay") | _IS_NATIVE,
        "engine: native",
    ),
    _ROLLOUT.rule(
        "vllm",
        "set where engine is vllm, and nowhere else",
        has("vllm").iff(~_IS_NATIVE),
        "engine: vllm, vllm: {endpoint: http://…, weightsDirectory: /…}",
    ),
    SPEC.rule(
        "rollout.engine",
        "native, or vllm with grpo or ppo, whose loss corrects for the log-probs of another program, or raft or sdpo",
        unset("rollout") | samples_natively("rollout.") | USES_REWARDS,
    ),
    _ROLLOUT.rule(
        "slots",
        "unset with engine: vllm, which decides itself how many rows it runs",
        unset("slots") | _IS_NATIVE,
        "vllm serve --max-num-seqs",
    ),
    _ROLLOUT.rule(
        "temperature",
        f"{LEAST_TEMPERATURE:g} to {MOST_TEMPERATURE:g} with engine: vllm, which knows no other",
        _IS_NATIVE | (compare("temperature", ">=", LEAST_TEMPERATURE) & compare("temperature", "<=", MOST_TEMPERATURE)),
    ),
    _ROLLOUT.rule(
        "vllm.weightsDirectory",
        "a directory that the server sees under the same path, because it reads new weights there",
        unset("vllm") | (unset("vllm.endpoint") & unset("separate")) | has("vllm.weightsDirectory"),
        "weightsDirectory: /shared/weights, on a volume of both pods",
    ),
    _ROLLOUT.rule(
        "vllm.endpoint",
        "unset with placement: separate, whose pods run vLLM",
        unset("separate") | unset("vllm") | unset("vllm.endpoint"),
    ),
    _ROLLOUT.rule(
        "vllm.image",
        "unset, or together with placement: separate, whose pods run it",
        unset("vllm") | unset("vllm.image") | has("separate"),
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
