"""Environments that reply to the model between its turns: tools, or the user's own class."""

from typing import Annotated, Literal

from pydantic import Field

from ptapi.spec.base import PositiveInt, PythonCode, PythonName, SpecModel


class PythonTool(PythonCode):
    """A Python function `tool(argument, …) -> str`; the model is told its name, annotations and docstring."""

    function: PythonName
    """The function in that file."""


class Tool(SpecModel):
    """A tool that the model may call: exactly one of `builtin` and `python`."""

    builtin: Literal["calculator", "lookup"] | None = None
    """`calculator` evaluates arithmetic; `lookup` looks up a key in the row's `table` (a map of text to text)."""
    python: PythonTool | None = None
    """A tool of your own."""


class PythonEnvironment(PythonCode):
    """A Python class with `reset(row) -> str | None` and `step(text) -> (observation, reward, done)`."""

    class_name: PythonName = "Environment"
    """The class in that file; each episode gets its own instance."""


class Environment(SpecModel):
    """Rollouts of several turns: exactly one of `tools` and `python`."""

    tools: Annotated[list[Tool], Field(max_length=16)] = []
    """Tools that the model may call; its chat template describes them, and their replies come back as tool turns."""
    python: PythonEnvironment | None = None
    """An environment of your own. The rewards of an episode's steps are summed and logged as `environment`."""
    tool_format: Literal["auto", "hermes", "llama", "mistral", "harmony", "gemma"] = "auto"
    """How the model writes a call: `hermes` (Qwen, Hermes: JSON in <tool_call>), `llama` (JSON alone), `mistral`
    ([TOOL_CALLS] and JSON), `harmony` (gpt-oss: channels), `gemma` (Python syntax, or JSON). `auto` decides by
    the chat template."""
    max_turns: Annotated[int, Field(ge=1, le=64)] = 4
    """Most turns of the model in an episode. `rollout.maxNewTokens` limits each turn, and `training.sequenceLength` the
    whole episode."""
    max_observation_tokens: PositiveInt = 256
    """Longest reply of the environment in tokens; a longer one is truncated."""
    timeout_seconds: Annotated[float, Field(gt=0.0, le=86400.0)] = 60.0
    """Time limit of an episode in its environment; one that takes longer gets no reward."""
    reward_weight: Annotated[float, Field(ge=-1000.0, le=1000.0)] = 1.0
    """Weight of the environment's own reward, in addition to `rewards`."""
