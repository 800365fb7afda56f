"""Rules for the environment: what answers the model between its turns."""

from ptapi.spec import Environment
from ptapi.validation.predicate import Predicate, each_once, empty, equals, filled, has
from ptapi.validation.rule import Rule, Scope
from ptapi.validation.rules.rollouts.rewards import code_rules

_ENVIRONMENT = Scope("spec.environment")


def _tools_differ(environment: Environment) -> bool:
    names = [tool.builtin or (tool.python and tool.python.function) for tool in environment.tools]
    return len(set(names)) == len(names)


def _kinds(environment: Environment) -> tuple[object, ...]:
    own = environment.python, environment.gymnasium, environment.openenv, environment.verifiers
    return (environment.tools or environment.mcp, *own)


RULES: tuple[Rule, ...] = (
    _ENVIRONMENT.rule(
        "",
        "exactly one of tools, python, gymnasium, openenv, verifiers; mcp counts as tools",
        Predicate(
            "[has(self.python), has(self.gymnasium), has(self.openenv), has(self.verifiers), "
            "has(self.tools) && self.tools.size() > 0 || has(self.mcp) && self.mcp.size() > 0]"
            ".filter(x, x).size() == 1",
            lambda environment: sum(map(bool, _kinds(environment))) == 1,
        ),
    ),
    _ENVIRONMENT.rule(
        "packages",
        "unset with builtin tools alone, openenv, or mcp without a command, which need none",
        empty("packages")
        | has("python")
        | has("gymnasium")
        | has("verifiers")
        | Predicate(
            "has(self.tools) && self.tools.exists(tool, has(tool.python)) "
            "|| has(self.mcp) && self.mcp.exists(server, has(server.command))",
            lambda environment: (
                environment.has_python_tools or any(server.command is not None for server in environment.mcp)
            ),
        ),
    ),
    _ENVIRONMENT.rule("packages", "each one once", each_once("packages")),
    Scope("spec.environment.gymnasium").rule("actions", "each one once", each_once("actions")),
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
        "unset without tools: other environments read the model's text themselves",
        equals("toolFormat", "auto") | filled("tools") | filled("mcp") | has("verifiers"),
    ),
    _ENVIRONMENT.rule(
        "rewardWeight",
        "unset with tools, which return no reward",
        equals("rewardWeight", 1.0) | has("python") | has("gymnasium") | has("openenv") | has("verifiers"),
    ),
    Scope("spec.environment.mcp[]").rule(
        "apiKeyEnv", "unset with command, which reads its environment", empty("apiKeyEnv") | has("url")
    ),
)
