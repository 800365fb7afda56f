"""What the spec can say and nothing does yet: refused as "not supported yet", never accepted and ignored.

One entry per field or value. When a feature lands, its entry goes, and its wrong manifest in the tests with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptapi.rule import Rule


def _custom(scope: str, field: str, accepted: str, cel: str, is_kept: Callable[[Any], bool]) -> Rule:
    return Rule(scope, field, f"not supported yet; accepted: {accepted}", cel, is_kept)


RULES: tuple[Rule, ...] = (
    _custom(
        "spec",
        "algorithm.ppo.critic.kind",
        "head where training.lora is set: a critic model would be trained whole",
        "!has(self.algorithm.ppo) || !has(self.training.lora) || self.algorithm.ppo.critic.kind == 'head'",
        lambda spec: (
            spec.algorithm.ppo is None or spec.training.lora is None or spec.algorithm.ppo.critic.kind == "head"
        ),
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
