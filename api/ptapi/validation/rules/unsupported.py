"""What the spec can say and nothing does yet: refused as "not supported yet", never accepted and ignored.

One entry per field or value. When a feature lands, its entry goes, and its wrong manifest in the tests with it.
"""

from ptapi.validation.predicate import Predicate, differs, equals, has, is_true, unset
from ptapi.validation.rule import Rule
from ptapi.validation.rules.chips.accelerator import IS_INELASTIC
from ptapi.validation.rules.pods.runtime_image_queue import IS_NATIVE
from ptapi.validation.rules.rollouts.rollout import samples_natively


def _unsupported(field: str, accepted: str, predicate: Predicate) -> Rule:
    return Rule("spec", field, f"not supported yet; accepted: {accepted}", predicate)


_TEXT = ~is_true("model.images")
_SEVERAL_PROCESSES = Predicate(
    "!has(self.environment) || has(self.environment.tools) && self.environment.tools.size() > 0 && "
    "self.environment.tools.all(tool, !has(tool.python)) && "
    "(!has(self.environment.mcp) || self.environment.mcp.size() == 0)",
    lambda spec: spec.environment is None or not spec.environment.needs_one_process,
    "||",
)

RULES: tuple[Rule, ...] = (
    _unsupported(
        "model.images",
        "false, or true with algorithm sft, dpo, grpo, ppo or raft",
        _TEXT
        | (unset("algorithm.distill") & unset("algorithm.kto") & unset("algorithm.reward") & unset("algorithm.sdpo")),
    ),
    _unsupported(
        "algorithm.ppo.critic.kind",
        "head with model.images: a critic of its own sees no pictures",
        _TEXT | unset("algorithm.ppo") | equals("algorithm.ppo.critic.kind", "head"),
    ),
    _unsupported(
        "algorithm.ppo.critic.uri",
        "unset where kind is model and training.lora is set: the critic's adapters are on the policy's own weights",
        unset("algorithm.ppo")
        | unset("training.lora")
        | equals("algorithm.ppo.critic.kind", "head")
        | unset("algorithm.ppo.critic.uri"),
    ),
    _unsupported(
        "training.ema",
        "unset with algorithm.reward: the new head has no average",
        unset("algorithm.reward") | unset("training.ema"),
    ),
    _unsupported(
        "export.format",
        "safetensors or none with algorithm.reward: adapters are exported merged, with the new head",
        unset("algorithm.reward") | differs("export.format", "peft"),
    ),
    _unsupported(
        "rollout.placement",
        "colocated with a reward's model, which is beside the policy on the training chips",
        equals("rollout.placement", "colocated")
        | Predicate(
            "!has(self.rewards) || !self.rewards.exists(reward, has(reward.model))",
            lambda spec: all(reward.model is None for reward in spec.rewards),
            "||",
        ),
    ),
    _unsupported(
        "rollout.placement",
        "colocated or disaggregated with capacity of type queuedProvisioning, whose request is for the trainer's pods",
        unset("rollout.separate")
        | Predicate(
            "!self.capacity.exists(option, option.type == 'queuedProvisioning')",
            lambda spec: all(option.type != "queuedProvisioning" for option in spec.capacity),
        ),
    ),
    Rule(
        "spec",
        "model.images",
        "not supported yet; accepted: false with samplers in pods of their own that are vLLM",
        unset("rollout.separate") | _TEXT | samples_natively("rollout."),
        "engine: native",
    ),
    Rule(
        "spec",
        "rollout.engine",
        "not supported yet; accepted: native with training.vision: lora, because vLLM adds adapters to the decoder "
        "alone",
        unset("rollout") | samples_natively("rollout.") | differs("training.vision", "lora"),
        "engine: native",
    ),
    Rule(
        "spec",
        "export.format",
        "not supported yet; accepted: safetensors with serve and training.vision: lora, because vLLM adds adapters to "
        "the decoder alone",
        unset("serve") | differs("export.format", "peft") | differs("training.vision", "lora"),
        "export: {format: safetensors} merges them",
    ),
    Rule(
        "spec",
        "rollout.speculative.block",
        "not supported yet; accepted: unset with rollout.placement: disaggregated or separate",
        unset("rollout.speculative") | unset("rollout.speculative.block") | equals("rollout.placement", "colocated"),
        "speculative: {ngram: {}}",
    ),
    _unsupported(
        "rollout.inFlightUpdates",
        "false with model.images",
        ~is_true("rollout.inFlightUpdates") | _TEXT,
    ),
    _unsupported(
        "rollout.inFlightUpdates",
        "false with rollout.separate.engine: vllm, whose samples are of one version of the weights",
        ~is_true("rollout.inFlightUpdates") | samples_natively("rollout.") | equals("rollout.engine", "vllm"),
    ),
    *(
        _unsupported("accelerator.minSlices", f"unset, or as many as slices, with {what}", IS_INELASTIC | predicate)
        for what, predicate in (
            ("dynamicSlicing, or with a runtime", IS_NATIVE & ~is_true("accelerator.dynamicSlicing")),
            ("engine: vllm, which one process gives the weights", samples_natively("rollout.")),
            ("placement: disaggregated", differs("rollout.placement", "disaggregated")),
            (
                "inFlightUpdates, whose batches depend on how many rows are sampled at once",
                ~is_true("rollout.inFlightUpdates"),
            ),
            ("an environment in Python or with mcp, whose episodes are in one process", _SEVERAL_PROCESSES),
        )
    ),
    _unsupported(
        "pathways.elasticSlices",
        "0 with posttrain's own trainer, which does not go on with fewer slices",
        equals("pathways.elasticSlices", 0) | (has("runtime") & (has("runtime.maxtext") | has("runtime.container"))),
    ),
)
