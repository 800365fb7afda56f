"""Rules for the environment: what answers the model between its turns."""

from ptapi.validation.condition import filled, has
from ptapi.validation.rule import Rule, Scope

RULES: tuple[Rule, ...] = (
    Scope("spec.environment").rule("", "exactly one of tools, python", has("python") ^ filled("tools")),
    Scope("spec.environment.tools[]").exactly_one("builtin", "python"),
)
