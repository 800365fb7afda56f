"""Tools of a chat: a user's Python functions in child processes, or builtin ones, as jobs have them."""

import ast
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ptapi.spec import Environment
from pttrainer.environments.tool_call_parsing import Call
from pttrainer.environments.tool_environment import BUILTINS, ToolEnvironment
from pttrainer.errors import ConfigError

CALL_S = 60.0
"""Time limit of a call."""


class Tools:
    """The tools that `--tools` names. Raises ConfigError or UserCodeError if they cannot be loaded."""

    def __init__(self, words: Sequence[str]) -> None:
        specs = [spec for word in words for spec in _specs(word)]
        try:
            self._environment = ToolEnvironment(Environment.model_validate({"tools": specs}), None, lambda: None)
        except ValidationError as error:
            raise ConfigError(f"--tools: {', '.join(words)}: {error.errors()[0]['msg']}") from error
        self.schemas = [dict(schema) for schema in self._environment.schemas]

    def results(self, calls: Sequence[dict[str, Any]]) -> list[str]:
        """Return what the model reads after calls of OpenAI's form."""
        return self._environment.results([_call(call["function"]) for call in calls], CALL_S)


def _specs(word: str) -> list[dict[str, Any]]:
    """Return the entries of `spec.environment.tools` for FILE.py, FILE.py:FUNCTION or a builtin. Raises ConfigError."""
    if word in BUILTINS:
        return [{"builtin": word}]
    parts = re.fullmatch(r"(.+\.py)(?::(\w+))?", word)
    if parts is None or not Path(parts[1]).is_file():
        builtins = ", ".join(BUILTINS)
        raise ConfigError(f"--tools: {word}: accepted: FILE.py or FILE.py:FUNCTION of a file that exists, {builtins}")
    path = Path(parts[1]).absolute()
    names = [parts[2]] if parts[2] else _public_functions(path)
    return [{"python": {"uri": f"file://{path}", "function": name}} for name in names]


def _public_functions(path: Path) -> list[str]:
    """Return the names of the functions that a file defines, without running it. Raises ConfigError."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"--tools: {path}: not valid Python: {error}") from error
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    if not names:
        raise ConfigError(f"--tools: {path}: defines no function; accepted: one or more, without _ before the name")
    return names


def _call(function: dict[str, Any]) -> Call:
    """Return a call; one whose arguments are no JSON object has an error, which the model reads."""
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError) as error:
        return Call(function["name"], {}, f"not valid JSON: {error}")
    if not isinstance(arguments, dict):
        return Call(function["name"], {}, "arguments; accepted: an object")
    return Call(function["name"], arguments)
