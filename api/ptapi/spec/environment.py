"""What answers the model between its turns: tools, or a world of the user's."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ptapi.spec.base import CodeUri, PositiveInt, PythonName, SpecModel


class PythonTool(SpecModel):
    """A Python function `tool(argument, …) -> str`; its name, annotations and docstring are what the model is told."""

    uri: CodeUri
    """The Python file: `file:///…` where the trainer runs, or `gs://…`."""
    function: PythonName
    """The function in that file."""


class Tool(SpecModel):
    """Something that the model may call: exactly one of `builtin` and `python`."""

    builtin: Literal["calculator", "lookup"] | None = None
    """`calculator` evaluates arithmetic; `lookup` finds a key in the row's `table` (a map of texts)."""
    python: PythonTool | None = None
    """A tool of your own."""


class PythonEnvironment(SpecModel):
    """A Python class with `reset(row) -> str | None` and `step(text) -> (observation, reward, done)`."""

    uri: CodeUri
    """The Python file: `file:///…` where the trainer runs, or `gs://…`."""
    class_name: PythonName = "Environment"
    """The class in that file; one object of it is made for each episode."""


class Environment(SpecModel):
    """Rollouts of several turns: exactly one of `tools` and `python`."""

    tools: Annotated[list[Tool], Field(max_length=16)] = []
    """What the model may call; it is told in the form of its chat template, and the answers come back as tool turns."""
    python: PythonEnvironment | None = None
    """A world of your own. The rewards of an episode's steps are summed and logged as `environment`."""
    tool_format: Literal["auto", "hermes", "llama", "mistral", "harmony", "gemma"] = "auto"
    """How the model writes a call: `hermes` (Qwen, Hermes: JSON in <tool_call>), `llama` (JSON alone), `mistral`
    ([TOOL_CALLS] and JSON), `harmony` (gpt-oss: channels), `gemma` (Python's words, or JSON). `auto` looks into the
    chat template."""
    max_turns: Annotated[int, Field(ge=1, le=64)] = 4
    """Most times that the model speaks in an episode. `rollout.maxNewTokens` bounds each of them, and
    `training.sequenceLength` the whole."""
    max_observation_tokens: PositiveInt = 256
    """Longest answer of the environment; a longer one is cut."""
    timeout_seconds: Annotated[float, Field(gt=0.0, le=86400.0)] = 60.0
    """Seconds that an episode may spend in its environment; one that takes longer has no reward."""
    reward_weight: Annotated[float, Field(ge=-1000.0, le=1000.0)] = 1.0
    """Factor of the environment's own reward, beside `rewards`."""
