"""Rules for sandboxes: what runs in them, and a budget that the run can begin with."""

from ptapi.spec import PostTrainJobSpec
from ptapi.validation.predicate import Predicate, compare, unset
from ptapi.validation.rule import SPEC, Rule, Scope
from ptapi.validation.rules.pods.runtime_image_queue import IS_NATIVE


def _uses_sandboxes(spec: PostTrainJobSpec) -> bool:
    has_tools = spec.environment is not None and spec.environment.has_python_tools
    return has_tools or any(reward.builtin == "code" for reward in spec.rewards)


_USES_SANDBOXES = Predicate(
    "self.rewards.exists(reward, has(reward.builtin) && reward.builtin == 'code') || has(self.environment) && "
    "has(self.environment.tools) && self.environment.tools.exists(tool, has(tool.python))",
    _uses_sandboxes,
    "||",
)

RULES: tuple[Rule, ...] = (
    SPEC.rule(
        "sandbox",
        "unset, or together with the builtin reward code or a Python tool of posttrain's own trainer: nothing else "
        "runs in sandboxes",
        unset("sandbox") | (_USES_SANDBOXES & IS_NATIVE),
        "rewards: [{builtin: code}]",
    ),
    Scope("spec.sandbox").rule(
        "maxCreated", "at least replicas, which the run begins with", compare("maxCreated", ">=", "replicas")
    ),
)
