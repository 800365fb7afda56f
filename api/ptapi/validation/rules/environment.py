"""Rules for the environment: what answers the model between its turns."""

from __future__ import annotations

from ptapi.validation.condition import filled, has
from ptapi.validation.rule import Rule, exactly_one

RULES: tuple[Rule, ...] = (
    Rule("spec.environment", "", "exactly one of tools, python", has("python") ^ filled("tools")),
    exactly_one("spec.environment.tools[]", "builtin", "python"),
)
