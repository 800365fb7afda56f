"""Rules for `rollout.engine`: what vLLM needs, and what belongs to one engine alone."""

from __future__ import annotations

from functools import partial

from ptapi.spec import Rollout, Vllm
from ptapi.validation.rule import Rule, at

LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.01, 2.0
"""vLLM raises what is below the first to it, and refuses what is above the second."""


def _belongs_to_a_server(field: str, vllm: Vllm) -> bool:
    return vllm.endpoint is not None or at(vllm, field) is None


def _is_native_or_unset(field: str, rollout: Rollout) -> bool:
    return rollout.engine == "native" or at(rollout, field) is None


RULES: tuple[Rule, ...] = (
    Rule(
        scope="spec.rollout",
        field="vllm",
        accepted="set where engine is vllm, and nowhere else",
        cel="has(self.vllm) == (self.engine == 'vllm')",
        is_kept=lambda rollout: (rollout.vllm is not None) == (rollout.engine == "vllm"),
        hint="engine: vllm, vllm: {endpoint: http://…, weightsDirectory: /…}",
    ),
    Rule(
        scope="spec",
        field="rollout.engine",
        accepted="native, or vllm with grpo or ppo, whose loss corrects for the log-probs of another program",
        cel="!has(self.rollout) || self.rollout.engine == 'native' || has(self.algorithm.grpo) || "
        "has(self.algorithm.ppo)",
        is_kept=lambda spec: spec.rollout.engine == "native" or spec.algorithm.learns_from_rewards,
    ),
    Rule(
        scope="spec.rollout",
        field="slots",
        accepted="unset with engine: vllm, which decides itself how many rows it runs",
        cel="!has(self.slots) || self.engine == 'native'",
        is_kept=partial(_is_native_or_unset, "slots"),
        hint="vllm serve --max-num-seqs",
    ),
    Rule(
        scope="spec.rollout",
        field="temperature",
        accepted=f"{LEAST_TEMPERATURE:g} to {MOST_TEMPERATURE:g} with engine: vllm, which knows no other",
        cel=f"self.engine == 'native' || (self.temperature >= {LEAST_TEMPERATURE} && "
        f"self.temperature <= {MOST_TEMPERATURE})",
        is_kept=lambda rollout: (
            rollout.engine == "native" or LEAST_TEMPERATURE <= rollout.temperature <= MOST_TEMPERATURE
        ),
    ),
    Rule(
        scope="spec.rollout.vllm",
        field="weightsDirectory",
        accepted="a directory that the server sees under the same path, because it reads new weights there",
        cel="!has(self.endpoint) || has(self.weightsDirectory)",
        is_kept=lambda vllm: vllm.endpoint is None or vllm.weights_directory is not None,
        hint="weightsDirectory: /shared/weights, on a volume of both pods",
    ),
    *(
        Rule(
            scope="spec.rollout.vllm",
            field=field,
            accepted="unset, or together with endpoint",
            cel=f"!has(self.{field}) || has(self.endpoint)",
            is_kept=partial(_belongs_to_a_server, field),
        )
        for field in ("model", "apiKeyEnv")
    ),
    Rule(
        scope="spec.rollout.vllm",
        field="memoryShare",
        accepted="unset with an endpoint, whose server has its own devices",
        cel="!has(self.memoryShare) || !has(self.endpoint)",
        is_kept=lambda vllm: vllm.memory_share is None or vllm.endpoint is None,
        hint="vllm serve --gpu-memory-utilization",
    ),
)
