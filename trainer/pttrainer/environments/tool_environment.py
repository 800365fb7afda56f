"""The environment of `spec.environment.tools`: a turn that calls tools is answered, a turn that calls none is the end.

Builtin tools run here, they cannot hang; a user's function runs in child processes with a limit per call, and one that
fails, hangs or dies is an error that the model reads. An unknown tool or a wrong argument is one, too: the model has
to learn from it, and the run shows how often it happens (`tools/failed`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ptapi.spec import Environment as EnvironmentSpec
from ptapi.spec import PythonTool
from pttrainer.environments import calculator, lookup, tool_call_parsing
from pttrainer.environments.environment import Opening, Row, Said, Turn
from pttrainer.environments.tool import Tool, ToolError, wrong_arguments
from pttrainer.environments.tool_call_parsing import Call
from pttrainer.errors import ConfigError
from pttrainer.runtime.io.local_copy import local_copy
from pttrainer.sandbox.pool import Alive, Pool, Request

BUILTINS: dict[str, Tool] = {"calculator": calculator.TOOL, "lookup": lookup.TOOL}
"""By the name in `spec.environment.tools[].builtin`."""

CALL_ID = "call00001"
"""Some templates want to see one; nothing here goes by it."""
MOST_CALLS = 8
"""Calls of one turn that are answered; the rest is an error."""


class _Asked(NamedTuple):
    """A call, whose it is, and how long it may take."""

    episode: int
    place: int
    call: Call
    row: Row
    limit_s: float


class _Answered(NamedTuple):
    """What a tool said, or the error; and the seconds that it took."""

    text: str
    error: str = ""
    seconds: float = 0.0

    @property
    def read(self) -> str:
        """What the model reads."""
        return f"error: {self.error}" if self.error else self.text or "(nothing)"


class Tools:
    """Answers calls; alive: called while tools are waited for. Raises ConfigError or UserCodeError when one cannot be
    loaded."""

    is_rewarding = False

    def __init__(self, spec: EnvironmentSpec, template: str | None, alive: Alive) -> None:
        self._alive = alive
        self._form = tool_call_parsing.form_of(template) if spec.tool_format == "auto" else spec.tool_format
        self._here: dict[str, Tool] = {}
        self._pools: dict[str, Pool] = {}
        self._schemas: dict[str, Mapping[str, Any]] = {}
        for index, tool in enumerate(spec.tools):
            field = f"spec.environment.tools[{index}]"
            name = tool.builtin or (tool.python.function if tool.python is not None else "")
            if name in self._schemas:
                raise ConfigError(f"{field}: {name!r}: two tools have this name")
            if tool.python is not None:
                self._pools[name] = _pool(field, tool.python)
                self._schemas[name] = self._pools[name].loaded["schema"]
            else:
                self._here[name] = BUILTINS[name]
                self._schemas[name] = BUILTINS[name].schema
        self.schemas: Sequence[Mapping[str, Any]] = list(self._schemas.values())

    def reset(self, rows: Mapping[int, Row]) -> dict[int, Opening]:
        """Tools remember nothing."""
        return {episode: Opening() for episode in rows}

    def step(self, said: Mapping[int, Said]) -> dict[int, Turn]:
        """All calls of all episodes; those of one tool at the same time."""
        asked = [
            _Asked(episode, place, call, turn.row, turn.left_s)
            for episode, turn in said.items()
            for place, call in enumerate(tool_call_parsing.calls_of(self._form, turn.text))
        ]
        answers: dict[tuple[int, int], _Answered] = {}
        for name in {one.call.name for one in asked}:
            of_tool = [one for one in asked if one.call.name == name]
            answers |= {
                (one.episode, one.place): found for one, found in zip(of_tool, self._answers(of_tool), strict=True)
            }
        return {episode: self._turn(episode, asked, answers) for episode in said}

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def _turn(self, episode: int, asked: Sequence[_Asked], answers: Mapping[tuple[int, int], _Answered]) -> Turn:
        ours = [one for one in asked if one.episode == episode]
        if not ours:
            return Turn(done=True)
        found = [answers[episode, one.place] for one in ours]
        messages = [
            {"role": "tool", "name": self._name(one.call), "content": answer.read, "tool_call_id": CALL_ID}
            for one, answer in zip(ours[:MOST_CALLS], found, strict=False)
        ]
        failed = sum(bool(answer.error) for answer in found)
        return Turn(messages, calls=len(ours), failed=failed, seconds=sum(answer.seconds for answer in found))

    def _name(self, call: Call) -> str:
        """As templates write it: never a word of the model's own, which may hold anything."""
        return call.name if call.name in self._schemas else "tool"

    def _answers(self, asked: Sequence[_Asked]) -> list[_Answered]:
        """Of calls of one tool."""
        wrong = [self._wrong(one) for one in asked]
        found = [_Answered("", error) for error in wrong]
        good = [place for place, error in enumerate(wrong) if not error]
        name = asked[0].call.name
        if good and name in self._pools:
            requests = [
                Request([asked[place].call.arguments, asked[place].row], asked[place].limit_s) for place in good
            ]
            for place, reply in zip(good, self._pools[name].call(requests, self._alive), strict=True):
                found[place] = _Answered(reply.value or "", reply.error, reply.seconds)
        else:
            for place in good:
                found[place] = _called(self._here[name], asked[place])
        return found

    def _wrong(self, one: _Asked) -> str:
        if one.place >= MOST_CALLS:
            return f"too many calls in one turn; accepted: {MOST_CALLS}"
        if one.call.error:
            return one.call.error
        if one.call.name not in self._schemas:
            return f"no tool {one.call.name[:60]!r}; accepted: {', '.join(self._schemas)}"
        return wrong_arguments(self._schemas[one.call.name], one.call.arguments)


def _called(tool: Tool, one: _Asked) -> _Answered:
    try:
        return _Answered(tool.call(one.call.arguments, one.row))
    except ToolError as error:
        return _Answered("", str(error))


def _pool(field: str, python: PythonTool) -> Pool:
    path = local_copy(f"{field}.python.uri", python.uri)
    return Pool(f"{field}.python", {"kind": "tool", "path": path, "function": python.function})
