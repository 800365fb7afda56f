"""What the spec can say and nothing does yet: refused as "not supported yet", never accepted and ignored.

One entry per field or value. When a feature lands, its entry goes, and its wrong manifest in the tests with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptapi.spec import PostTrainJobSpec
from ptapi.validation.rule import Rule


def _custom(scope: str, field: str, accepted: str, cel: str, is_kept: Callable[[Any], bool]) -> Rule:
    return Rule(scope, field, f"not supported yet; accepted: {accepted}", cel, is_kept)


def _has_adapters_on_the_policy(spec: PostTrainJobSpec) -> bool:
    ppo = spec.algorithm.ppo
    return ppo is None or spec.training.lora is None or ppo.critic.kind == "head" or ppo.critic.uri is None


RULES: tuple[Rule, ...] = (
    _custom(
        "spec",
        "algorithm.ppo.critic.uri",
        "unset where kind is model and training.lora is set: the critic's adapters are on the policy's own weights",
        "!has(self.algorithm.ppo) || !has(self.training.lora) || self.algorithm.ppo.critic.kind == 'head' || "
        "!has(self.algorithm.ppo.critic.uri)",
        _has_adapters_on_the_policy,
    ),
    _custom(
        "spec",
        "pathways.elasticSlices",
        "0 with posttrain's own trainer, which does not go on with fewer slices",
        "self.pathways.elasticSlices == 0 || "
        "(has(self.runtime) && (has(self.runtime.maxtext) || has(self.runtime.container)))",
        lambda spec: spec.pathways.elastic_slices == 0 or not spec.runtime.is_native,
    ),
)
