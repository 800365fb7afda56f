"""What the spec can say and nothing does yet: refused as "not supported yet", never accepted and ignored.

One entry per field or value. When a feature lands, its entry goes, and its wrong manifest in the tests with it.
"""

from ptapi.validation.predicate import Predicate, equals, has, is_true, unset
from ptapi.validation.rule import Rule


def _unsupported(field: str, accepted: str, predicate: Predicate) -> Rule:
    return Rule("spec", field, f"not supported yet; accepted: {accepted}", predicate)


_TEXT = ~is_true("model.images")

RULES: tuple[Rule, ...] = (
    _unsupported("model.images", "false, or true with algorithm.sft", _TEXT | has("algorithm.sft")),
    *(
        _unsupported(field, "unset with model.images", _TEXT | unset(field))
        for field in ("environment", "rollout.speculative")
    ),
    _unsupported("rollout.engine", "native with model.images", _TEXT | equals("rollout.engine", "native")),
    _unsupported(
        "export.format",
        "safetensors or none, with model.images",
        _TEXT | equals("export.format", "safetensors") | equals("export.format", "none"),
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
        "pathways.elasticSlices",
        "0 with posttrain's own trainer, which does not go on with fewer slices",
        equals("pathways.elasticSlices", 0) | (has("runtime") & (has("runtime.maxtext") | has("runtime.container"))),
    ),
)
