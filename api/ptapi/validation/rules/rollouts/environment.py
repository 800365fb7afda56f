"""Rules for the environment: what answers the model between its turns."""

from ptapi.spec import Environment
from ptapi.validation.predicate import Predicate, equals, filled, has
from ptapi.validation.rule import Rule, Scope
from ptapi.validation.rules.rollouts.rewards import code_rules

_ENVIRONMENT = Scope("spec.environment")


def _tools_differ(environment: Environment) -> bool:
    names = [tool.builtin or (tool.python and tool.python.function) for tool in environment.tools]
    return len(set(names)) == len(names)


RULES: tuple[Rule, ...] = (
    _ENVIRONMENT.rule("", "exactly one of tools, python", has("python") ^ filled("tools")),
    *code_rules("spec.environment.python"),
    Scope("spec.environment.tools[]").exactly_one("builtin", "python"),
    *code_rules("spec.environment.tools[].python"),
    _ENVIRONMENT.rule(
        "tools",
        "tools with different names, by which the model calls them: a builtin's or a function's",
        Predicate("", _tools_differ),
    ),
    _ENVIRONMENT.rule(
        "toolFormat",
        "unset with python, which reads the model's text itself",
        equals("toolFormat", "auto") | filled("tools"),
    ),
    _ENVIRONMENT.rule(
        "rewardWeight", "unset with tools, which return no reward", equals("rewardWeight", 1.0) | has("python")
    ),
)
