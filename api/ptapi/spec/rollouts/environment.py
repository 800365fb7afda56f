"""Environments that reply to the model between its turns: tools, or the user's own class."""

from typing import Annotated, Any, Literal

from pydantic import Field

from ptapi.spec.base import (
    EnvName,
    GymnasiumId,
    HttpUrl,
    PinnedPackage,
    PositiveInt,
    PythonCode,
    PythonName,
    SpecModel,
    VerifiersId,
)
from ptapi.spec.openapi_schema import ANY_SCALAR
from ptapi.spec.pods.services import ServiceName


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


class GymnasiumEnvironment(SpecModel):
    """An environment that `gymnasium.make` makes, with discrete actions or text; each episode gets its own."""

    id: GymnasiumId
    """Its name there, such as `FrozenLake-v1`; `module:Name-v0` imports the module first, which registers it."""
    arguments: Annotated[dict[str, Any], Field(json_schema_extra={ANY_SCALAR: True})] | None = None
    """Arguments of `gymnasium.make`. With `render_mode: ansi` the model reads what the environment renders."""
    actions: Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(max_length=256)] = []
    """Names of discrete actions, in order: the last of these words in the model's turn is its action. Unset: the last
    whole number is."""


class VerifiersEnvironment(SpecModel):
    """A package with `load_environment`, as `verifiers` 0.1.8 to 0.3 play it: one or more turns, tools, rubrics."""

    id: VerifiersId
    """Its name, such as `wordle` or `primeintellect/wordle`: the module is the last part, with `_` for `-`."""
    arguments: Annotated[dict[str, Any], Field(json_schema_extra={ANY_SCALAR: True})] | None = None
    """Arguments of `load_environment`."""


class OpenEnvEnvironment(SpecModel):
    """A server of OpenEnv's, at a `url` or a `service`, with a session for each episode."""

    url: HttpUrl | None = None
    """The server's root, such as `http://echo-env:8000`; `/ws` is added. It must have room for a session of every
    sample that is drawn at once (`max_concurrent_envs`)."""
    service: ServiceName | None = None
    """The service of the job that is this server."""
    action_field: PythonName | None = None
    """The field of the action that is the model's turn. Unset: the last JSON object in the turn is the action."""
    observation_field: PythonName | None = None
    """The field of the observation that the model reads. Unset: all of it, as JSON."""


class McpServer(SpecModel):
    """A server of the Model Context Protocol, whose tools the model may call: exactly one of url, command, service."""

    name: PythonName
    """Its name in messages."""
    url: HttpUrl | None = None
    """Its endpoint over streamable HTTP, such as `http://search:8000/mcp`."""
    service: ServiceName | None = None
    """The service of the job that is this server."""
    path: Annotated[str, Field(max_length=256, pattern=r"^/[^\s]*$")] | None = None
    """Where the service speaks MCP. Unset: `/mcp`."""
    command: (
        Annotated[list[Annotated[str, Field(min_length=1, max_length=4096)]], Field(min_length=1, max_length=64)] | None
    ) = None
    """Program and arguments of a server over standard input and output, in the trainer's pod, with `packages` on its
    path. One whose answer is late is killed and started again."""
    tools: Annotated[list[Annotated[str, Field(min_length=1, max_length=128)]], Field(max_length=64)] = []
    """The tools that the model is told of. Unset: all that the server lists when the run begins."""
    timeout_seconds: Annotated[float, Field(gt=0.0, le=3600.0)] = 30.0
    """Time limit of a call; one that takes longer ends its episode without a reward."""
    max_result_bytes: Annotated[int, Field(ge=1024, le=1 << 26)] = 1 << 20
    """Longest answer; a longer one ends its episode without a reward. `maxObservationTokens` cuts what the model reads
    of it."""
    concurrency: Annotated[int, Field(ge=1, le=256)] = 16
    """Most calls at once."""
    api_key_env: EnvName | None = None
    """The environment variable with a bearer token; set it from a Secret in `env`. Unset: none is sent."""


class Environment(SpecModel):
    """Rollouts of several turns: exactly one of `tools` (or `mcp`), `python`, `gymnasium`, `openenv`, `verifiers`."""

    tools: Annotated[list[Tool], Field(max_length=16)] = []
    """Tools that the model may call; its chat template describes them, and their replies come back as tool turns."""
    mcp: Annotated[list[McpServer], Field(max_length=8)] = []
    """MCP servers, whose tools the model may call beside `tools`. A tool's error is read by the model; a server that
    does not answer fails the episode, which has no reward then."""
    python: PythonEnvironment | None = None
    """An environment of your own. The rewards of an episode's steps are summed and logged as `environment`."""
    gymnasium: GymnasiumEnvironment | None = None
    """An environment of Gymnasium's. Its rewards are those of `python`. A row's `seed` begins its episodes, else a
    number made from the row: all samples of a prompt begin alike."""
    openenv: OpenEnvEnvironment | None = None
    """A server of OpenEnv's. Rewards and seeds are as of `gymnasium`."""
    verifiers: VerifiersEnvironment | None = None
    """An environment of a `verifiers` package, with its tools and its rubric's reward."""
    packages: Annotated[list[PinnedPackage], Field(max_length=32)] = []
    """Python packages that pip installs into the pod for the environment and the tools, as `name==version`, so that
    a restart has the same ones. What the trainer has itself is not replaced."""
    tool_format: Literal["auto", "hermes", "llama", "mistral", "harmony", "gemma"] = "auto"
    """How the model writes a call: `hermes` (Qwen, Hermes: JSON in <tool_call>), `llama` (JSON alone), `mistral`
    ([TOOL_CALLS] and JSON), `harmony` (gpt-oss: channels), `gemma` (Gemma 4's tokens; Python syntax, or JSON).
    `auto` decides by the chat template."""
    max_turns: Annotated[int, Field(ge=1, le=64)] = 4
    """Most turns of the model in an episode. `rollout.maxNewTokens` limits each turn, and `training.sequenceLength` the
    whole episode."""
    max_observation_tokens: PositiveInt = 256
    """Longest reply of the environment in tokens; a longer one is truncated."""
    timeout_seconds: Annotated[float, Field(gt=0.0, le=86400.0)] = 60.0
    """Time limit of an episode in its environment; one that takes longer gets no reward."""
    reward_weight: Annotated[float, Field(ge=-1000.0, le=1000.0)] = 1.0
    """Weight of the environment's own reward, in addition to `rewards`."""

    @property
    def is_rewarding(self) -> bool:
        """Return True for an environment with rewards of its own."""
        return not self.tools and not self.mcp

    @property
    def runs_python(self) -> bool:
        """Return True if Python of the user's, or of an environment's package, answers the model."""
        return self.is_rewarding or self.has_python_tools

    @property
    def has_python_tools(self) -> bool:
        """Return True if a tool is a Python function of the user's."""
        return any(tool.python is not None for tool in self.tools)

    @property
    def needs_one_process(self) -> bool:
        """Return True if all episodes must be in one process: that of the Python, or of the sessions with servers."""
        return self.runs_python or bool(self.mcp)
