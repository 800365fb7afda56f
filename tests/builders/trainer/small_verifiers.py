"""A package of `verifiers`' protocol, small and written here: environments, rubrics, and clients as 0.1.8 and 0.1.14
have them. It depends on `openai` alone, as the protocol does."""

from pathlib import Path

_ENVIRONMENT = """
import json

class Error(Exception): ...
class InfraError(Error): ...

class Rubric:
    def __init__(self, funcs, weights=None):
        self.funcs, self.weights = list(funcs), list(weights or [1.0] * len(funcs))

    def _get_group_reward_funcs(self):
        return [each for each in self.funcs if each.__name__.startswith("group_")]

    async def _of(self, function, *arguments):
        try:
            return await function(*arguments)
        except Exception:
            return None

    async def score_rollout(self, state{score_sem}):
        values = [await self._of(each, state) for each in self.funcs]
        state["reward"] = sum(weight * (value or 0.0) for value, weight in zip(values, self.weights))

    async def score_group(self, states{score_sem}):
        for state in states:
            state["reward"] = 0.0
        for function, weight in zip(self.funcs, self.weights):
            if function in self._get_group_reward_funcs():
                values = await self._of(function, states) or [0.0] * len(states)
            else:
                values = [await self._of(function, state) or 0.0 for state in states]
            for state, value in zip(states, values):
                state["reward"] += weight * value

class RubricGroup(Rubric):
    def __init__(self, rubrics):
        super().__init__([])
        self.rubrics = rubrics

    async def score_rollout(self, state{score_sem}):
        total = 0.0
        for rubric in self.rubrics:
            await rubric.score_rollout(state{score_sem_of})
            total += state["reward"]
        state["reward"] = total

class Environment:
    message_type, env_id, system_prompt, tools, max_turns, rows = "chat", "", None, {{}}, -1, ()

    def __init__(self, rubric, **fields):
        self.rubric = rubric
        vars(self).update(fields)
        self.{tools} = [{tool} for name in self.tools]
{task}
    def get_dataset(self):
        return self.rows

    async def setup_state(self, state): ...

    async def env_response(self, messages, state):
        answers = []
        for call in messages[-1]["tool_calls"]:
            try:
                said = self.tools[call.function.name](state, **json.loads(call.function.arguments))
            except Exception as error:
                said = repr(error)
            answers.append({{"role": "tool", "tool_call_id": call.id, "content": said}})
        return answers

    def is_over(self, state):
        last = state["turns"][-1]
        return len(state["turns"]) == self.max_turns or bool(self.tools) and not last["tool_calls"]

    async def rollout(self, input, client, model, sampling_args=None):
        state = {{**input, "turns": [], "error": None, "is_truncated": False}}
        messages = list(input["prompt"])
        try:
            await self.setup_state(state)
            while True:
                try:
                    tools = [{wire} for tool in self.{tools}]
                    response = await client{client}.chat.completions.create(
                        model=model, messages=messages, **({{"tools": tools}} if tools else {{}}))
                except Exception as error:
                    if "maximum context length is" not in getattr(getattr(error, "response", None), "text", ""):
                        raise
                    state["is_truncated"] = True
                    break
                said = response.choices[0].message
                turn = {{"role": "assistant", "content": said.content or "", "tool_calls": said.tool_calls}}
                state["is_truncated"] |= response.choices[0].finish_reason == "length"
                state["turns"].append(turn)
                messages = [*messages, turn]
                if self.is_over(state):
                    break
                messages = [*messages, *await self.env_response(messages, state)]
        except Error as error:
            state["error"] = error
        return state
"""
_TOOL = '{"name": name, "description": name, "parameters": {"type": "object", "properties": {}, "required": []}}'
_CLIENT = """
class OpenAIChatCompletionsClient:
    def __init__(self, client):
        self.client = client
"""
_ENSURE = """
    def _ensure_task(self, dataset): ...
"""


def write(directory: Path, name: str, *, wraps_clients: bool) -> str:
    """Write the package into a directory, and return the line that imports it. wraps_clients: as later releases do."""
    package = directory / name
    (package / "envs").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "envs" / "__init__.py").touch()
    source = _ENVIRONMENT.format(
        score_sem="" if wraps_clients else ", score_sem",
        score_sem_of="" if wraps_clients else ", score_sem",
        tools="tool_defs" if wraps_clients else "oai_tools",
        tool=_TOOL if wraps_clients else f'{{"type": "function", "function": {_TOOL}}}',
        wire='{"type": "function", "function": tool}' if wraps_clients else "tool",
        client=".client" if wraps_clients else "",
        task="" if wraps_clients else _ENSURE,
    )
    (package / "envs" / "environment.py").write_text(source)
    if wraps_clients:
        (package / "clients.py").write_text(_CLIENT)
    return f"from {name}.envs.environment import *\n"
