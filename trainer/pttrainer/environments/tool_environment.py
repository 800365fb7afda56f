"""The environment of `spec.environment.tools` and `mcp`: calls are answered; a turn without calls ends the episode.

Builtin tools run in process, because they cannot hang; a user's function runs in child processes with a limit per call,
and one that fails, hangs or dies is an error that the model reads. So is an unknown tool or a wrong argument: the model
has to learn from it, and the run reports how often it happens (`tools/failed`). An MCP server that does not answer is
no mistake of the model's: the episode ends without a reward.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ptapi.spec import Environment as EnvironmentSpec
from ptapi.spec import PythonTool
from pttrainer.environments import tool_call_parsing
from pttrainer.environments.environment import NO_PROMPTS, AssistantTurn, ResetResult, Row, RowPrompt, StepResult
from pttrainer.environments.tool import Tool, ToolError, wrong_arguments
from pttrainer.environments.tool_call_parsing import Call
from pttrainer.environments.tools import calculator, lookup
from pttrainer.environments.tools.mcp_tools import McpCall, McpTools
from pttrainer.errors import ConfigError
from pttrainer.runtime.distributed import processes
from pttrainer.runtime.io.local_copy import local_copy
from pttrainer.sandbox.agent.agent_pool import AgentPool, open_pool
from pttrainer.sandbox.pool import Alive, Pool, Reply, Request

BUILTINS: dict[str, Tool] = {"calculator": calculator.TOOL, "lookup": lookup.TOOL}
"""By the name in `spec.environment.tools[].builtin`."""

CALL_ID = "call00001"
"""Some templates require an id; nothing here uses it."""
MAX_CALLS = 8
"""Calls of one turn that are answered; further ones are errors."""


class _PendingCall(NamedTuple):
    """A call, its episode and place in the turn, and how long it may take."""

    episode: int
    place: int
    call: Call
    row: Row
    limit_s: float


class _ToolResult(NamedTuple):
    """A tool's text or error, and the seconds it took."""

    text: str
    error: str = ""
    seconds: float = 0.0
    lost: str = ""

    @property
    def read(self) -> str:
        """Return the text that the model reads."""
        return f"error: {self.error}" if self.error else self.text or "(nothing)"


class ToolEnvironment:
    """Answers tool calls; alive: called while waiting; packages: the directory of the job's own.

    Raises ConfigError or UserCodeError if a tool cannot be loaded.
    """

    is_rewarding = False

    def __init__(self, spec: EnvironmentSpec, template: str | None, alive: Alive, packages: str | None = None) -> None:
        self._alive = alive
        self._form = tool_call_parsing.chosen_format(spec, template)
        self._builtins: dict[str, Tool] = {}
        self._pools: dict[str, Pool | AgentPool] = {}
        self._schemas: dict[str, Mapping[str, Any]] = {}
        for index, tool in enumerate(spec.tools):
            field = f"spec.environment.tools[{index}]"
            name = tool.builtin or (tool.python.function if tool.python is not None else "")
            if name in self._schemas:
                raise ConfigError(f"{field}: {name!r}: two tools have this name")
            if tool.python is not None:
                self._pools[name] = _pool(field, tool.python, packages)
                self._schemas[name] = self._pools[name].loaded["schema"]
            else:
                self._builtins[name] = BUILTINS[name]
                self._schemas[name] = BUILTINS[name].schema
        try:
            self._mcp = McpTools(spec.mcp, alive, packages=packages)
        except BaseException:
            self._close_pools()
            raise
        for name, described in self._mcp.schemas.items():
            if name in self._schemas:
                self.close()
                raise ConfigError(f"spec.environment.mcp: {name!r}: two tools have this name")
            self._schemas[name] = described
        self.schemas: Sequence[Mapping[str, Any]] = list(self._schemas.values())

    def reset(self, rows: Mapping[int, Row], prompts: Mapping[int, RowPrompt] = NO_PROMPTS) -> dict[int, ResetResult]:
        """Begin episodes; of tools, only servers may keep state, in sessions that episodes share."""
        self._mcp.begin()
        return {episode: ResetResult() for episode in rows}

    def step(self, turns: Mapping[int, AssistantTurn]) -> dict[int, StepResult]:
        """Run all calls of all episodes; those of one tool run concurrently."""
        pending = [
            _PendingCall(episode, place, call, turn.row, turn.left_s)
            for episode, turn in turns.items()
            for place, call in enumerate(tool_call_parsing.parse_calls(self._form, turn.text))
        ]
        answers = self._answers(pending)
        return {episode: self._turn(episode, pending, answers) for episode in turns}

    def results(self, calls: Sequence[Call], limit_s: float) -> list[str]:
        """Return what the model reads after the calls of one turn, of a conversation without a row."""
        pending = [_PendingCall(0, place, call, {}, limit_s) for place, call in enumerate(calls)]
        answers = self._answers(pending)
        return [answers[0, place].read for place in range(len(calls))]

    def finish(self, last_turns: Mapping[int, str | None]) -> dict[int, StepResult]:
        """Return nothing: tools have no rewards."""
        return {}

    def close(self) -> None:
        """End the child processes and the sessions."""
        self._close_pools()
        self._mcp.close()

    def _close_pools(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def _answers(self, pending: Sequence[_PendingCall]) -> dict[tuple[int, int], _ToolResult]:
        answers: dict[tuple[int, int], _ToolResult] = {}
        for name in {each.call.name for each in pending}:
            of_tool = [each for each in pending if each.call.name == name]
            answers |= {
                (each.episode, each.place): result
                for each, result in zip(of_tool, self._run_calls(of_tool), strict=True)
            }
        return answers

    def _turn(
        self, episode: int, pending: Sequence[_PendingCall], answers: Mapping[tuple[int, int], _ToolResult]
    ) -> StepResult:
        calls = [each for each in pending if each.episode == episode]
        if not calls:
            return StepResult(done=True)
        results = [answers[episode, each.place] for each in calls]
        messages = [
            {"role": "tool", "name": self._name(each.call), "content": answer.read, "tool_call_id": CALL_ID}
            for each, answer in zip(calls[:MAX_CALLS], results, strict=False)
        ]
        failed = sum(bool(answer.error) for answer in results)
        lost = next((answer.lost for answer in results if answer.lost), "")
        seconds = sum(answer.seconds for answer in results)
        return StepResult(messages, 0.0, bool(lost), lost, seconds, len(calls), failed, is_lost=bool(lost))

    def _name(self, call: Call) -> str:
        """Return the name for the template: never text of the model's own, which may be anything."""
        return call.name if call.name in self._schemas else "tool"

    def _run_calls(self, calls: Sequence[_PendingCall]) -> list[_ToolResult]:
        """Run calls of one tool."""
        errors = [self._error_in(each) for each in calls]
        results = [_ToolResult("", error) for error in errors]
        good = [place for place, error in enumerate(errors) if not error]
        name = calls[0].call.name
        if good and name in self._pools:
            requests = [
                Request([calls[place].call.arguments, calls[place].row], calls[place].limit_s) for place in good
            ]
            for place, reply in zip(good, self._pools[name].call(requests, self._alive), strict=True):
                results[place] = _result(reply)
        elif good and name in self._mcp.schemas:
            wanted = [
                McpCall(name, calls[place].call.arguments, calls[place].limit_s, calls[place].episode) for place in good
            ]
            for place, result in zip(good, self._mcp.call(wanted), strict=True):
                results[place] = _ToolResult(result.text, result.error, result.seconds, result.lost)
        else:
            for place in good:
                results[place] = _call_builtin(self._builtins[name], calls[place])
        return results

    def _error_in(self, pending: _PendingCall) -> str:
        if pending.place >= MAX_CALLS:
            return f"too many calls in one turn; accepted: {MAX_CALLS}"
        if pending.call.error:
            return pending.call.error
        if pending.call.name not in self._schemas:
            return f"no tool {pending.call.name[:60]!r}; accepted: {', '.join(self._schemas)}"
        return wrong_arguments(self._schemas[pending.call.name], pending.call.arguments)


def _call_builtin(tool: Tool, pending: _PendingCall) -> _ToolResult:
    try:
        return _ToolResult(tool.call(pending.call.arguments, pending.row))
    except ToolError as error:
        return _ToolResult("", str(error))


def _result(reply: Reply) -> _ToolResult:
    """Return a user's tool's result; one that was lost with its sandbox is no error of the model's."""
    if reply.is_lost:
        return _ToolResult("", seconds=reply.seconds, lost=reply.error)
    return _ToolResult(reply.value or "", reply.error, reply.seconds)


def _pool(field: str, python: PythonTool, packages: str | None) -> Pool | AgentPool:
    path = local_copy(f"{field}.python", python)
    source = {"kind": "tool", "path": path, "function": python.function, "packages": packages}
    return open_pool(f"{field}.python", source, processes.sandboxes())
