"""Tools, calls in the formats of model families, and user environments that hang or die."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

import pytest
from tests.builders.peers.templates import FAMILIES

from ptapi.spec import Environment as EnvironmentSpec
from pttrainer.environments import python_tool
from pttrainer.environments.environment import AssistantTurn, StepResult
from pttrainer.environments.python_environment import UserEnvironment, source_of
from pttrainer.environments.tool import ToolError
from pttrainer.environments.tool_call_parsing import Call, format_of, parse_calls
from pttrainer.environments.tool_environment import ToolEnvironment
from pttrainer.environments.tools import calculator, lookup
from pttrainer.errors import UserCodeError
from pttrainer.rewards.builtin import tool_use

ADD = Call("f", {"a": 1})


def hermes(name: str, /, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize(
    ("form", "text", "calls"),
    [
        ("hermes", 'Let me see. <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>', [ADD]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>' * 2, [ADD, ADD]),
        ("hermes", "I would not call.", []),
        ("hermes", '<think><tool_call>{"name": "f", "arguments": {}}</tool_call></think>No.', []),
        (
            "harmony",
            "<|channel|>analysis<|message|>Need f.<|end|><|start|>assistant"
            '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
            [ADD],
        ),
        ("harmony", ' to=functions.f<|channel|>commentary json<|message|>{"a": 1}', [ADD]),
        ("harmony", "<|channel|>commentary<|message|>I call to=functions.f now.<|end|>", []),
        ("harmony", '<|channel|>analysis<|message|>{"a": 1}<|end|><|start|>assistant<|channel|>final<|message|>4', []),
        ("gemma", "[f(a=1)]", [ADD]),
        ("gemma", "[f(a=1), g()]", [ADD, Call("g", {})]),
        ("gemma", "```tool_code\nf(a=1)\n```", [ADD]),
        ("gemma", "I look it up.\n```tool_code\nprint(f(a=1))\nx = g(b=[1, 'c'])\n```",
         [ADD, Call("g", {"b": [1, "c"]})]),
        ("gemma", '{"name": "f", "parameters": {"a": 1}}', [ADD]),
        ("gemma", "I look.<|tool_call>call:f{a:1}<tool_call|>", [ADD]),
        ("gemma", '<|tool_call>call:f{a:1}<tool_call|><|tool_call>call:g{b:[1,<|"|>c<|"|>]}<tool_call|>',
         [ADD, Call("g", {"b": [1, "c"]})]),
        ("gemma", '<|tool_call>call:g{s:<|"|>{"x": y,z:1}<|"|>,o:{deep:true,none:null}}<tool_call|>',
         [Call("g", {"s": '{"x": y,z:1}', "o": {"deep": True, "none": None}})]),
        ("gemma", "<|channel>thought\n<|tool_call>call:f{a:2}<tool_call|><channel|>No.", []),
        ("gemma", '```json\n{"name": "f", "parameters": {"a": 1}}\n```', [ADD]),
        ("gemma", '[{"name": "f", "parameters": {"a": 1}}, {"name": "g"}]', [ADD, Call("g", {})]),
        ("gemma", "The answer is [4], as f(a=1) says.", []),
        ("gemma", "```python\nf(a=1)\n```", []),
        ("llama", '{"name": "f", "parameters": {"a": 1}}', [ADD]),
        ("llama", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}; {"name": "f", "parameters": {"a": 1}}',
         [ADD] * 2),
        ("llama", 'The answer is {"a": 1}', []),
        ("llama", '{"total": 3}', []),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "123456789"}]', [ADD]),
        ("mistral", '[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a": 1}[TOOL_CALLS]f[ARGS]{"a": 1}', [ADD, ADD]),
        ("mistral", "No call.", []),
    ],
)  # fmt: skip
def test_calls_are_read_as_the_model_s_family_writes_them(form: str, text: str, calls: list[Call]) -> None:
    assert parse_calls(form, text) == calls


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}}'),
        ("hermes", "<tool_call>f(a=1)</tool_call>"),
        ("hermes", "<tool_call>" + "[" * 100_000 + "</tool_call>"),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": "a"}</tool_call>'),
        ("llama", '{"name": "f", "parameters": '),
        ("llama", "<|python_tag|>f.call(1)"),
        ("mistral", "[TOOL_CALLS] f"),
        ("mistral", "[TOOL_CALLS]f[ARGS]{"),
        ("mistral", "[TOOL_CALLS][ARGS]{}"),
        ("harmony", '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": '),
        ("harmony", "<|channel|>commentary to=functions.f <|constrain|>json"),
        ("harmony", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>[1]<|call|>"),
        ("harmony", "<|channel|>analysis to=python code<|message|>1 + 1<|call|>"),
        ("gemma", "[f(1)]"),
        ("gemma", "<|tool_call>call:f{a:1}"),
        ("gemma", "<|tool_call>call:f{a:}<tool_call|>"),
        ("gemma", '<|tool_call>call:f{a:<|"|>b}<tool_call|>'),
        ("gemma", "<|tool_call>{a:1}<tool_call|>"),
        ("gemma", "<|tool_call>call:f{a:" + "[" * 100_000 + "<tool_call|>"),
        ("gemma", "[f(a=1)"),
        ("gemma", "[f(a=g())]"),
        ("gemma", "[f(**{'a': 1}, b=open('x'))]"),
        ("gemma", "```tool_code\nimport os\n```"),
        ("gemma", "```tool_code\nos.remove(path='x')"),
        ("gemma", "[f(a=" + "(" * 5000 + ")]"),
        ("gemma", '{"name": "f", "parameters": '),
        ("gemma", '{"name": ' + "[" * 100_000),
        ("gemma", "[f(a=[1j])]"),
        ("gemma", "[f(a={1, 2})]"),
        ("gemma", "[f(a={(1, 2): b'x'})]"),
        ("llama", '{"name": ' + "[" * 100_000),
        ("mistral", "[TOOL_CALLS]" + "[" * 100_000),
        ("harmony", " to=functions.f<|channel|>commentary<|message|>" + "[" * 100_000),
    ],
)
def test_a_call_that_cannot_be_read_is_a_failed_call_and_no_answer(form: str, text: str) -> None:
    (call,) = parse_calls(form, text)
    assert call.error


def test_the_form_is_found_in_the_chat_template() -> None:
    assert format_of("… <tool_call> … ") == "hermes"
    assert format_of("{{ '[TOOL_CALLS]' }}") == "mistral"
    assert format_of("<|start_header_id|>ipython<|end_header_id|>") == "llama"
    assert format_of(FAMILIES["gpt-oss"].template) == "harmony"
    assert format_of(FAMILIES["gemma-3"].template) == format_of(FAMILIES["gemma-2"].template) == "gemma"
    assert format_of("{{ '<|tool_call>call:' }}{{ '<tool_call|>' }}") == "gemma"
    assert format_of(FAMILIES["qwen-3"].template) == "hermes"
    assert format_of(None) == "hermes"


@pytest.mark.parametrize(
    ("expression", "value"),
    [("(12 + 3) * 4 / 5", "12"), ("1/3", "0.3333333333"), ("-2**2", "-4"), ("7 // 2 + 7 % 4", "6"),
     ("0.1 + 0.2", "0.3"), ("sqrt(16) + max(1, 2)", "6"), ("2 ^ 10", "1024"),
     ("12345678901234567890 * 10", "123456789012345678900")],
)  # fmt: skip
def test_the_calculator_is_exact(expression: str, value: str) -> None:
    assert calculator.call({"expression": expression}, {}) == value


@pytest.mark.parametrize(
    "expression",
    ["1/0", "9**9**9", "2**9999", "__import__('os')", "(1).real", "'a'*3", "1+", "x", "True", "[1]", "(" * 150,
     "1" * 300, "10**60*10", "((((0.1)**64)**64)**64)**64", "1/3**64**64**64",
     "(-8)**0.5", "sqrt(-1)", "9 if 1 else 2", "max()", "lambda: 1"],
)  # fmt: skip
def test_what_is_no_arithmetic_is_an_error_that_the_model_reads(expression: str) -> None:
    with pytest.raises(ToolError):
        calculator.call({"expression": expression}, {})


def test_a_table_is_looked_up_in_the_row_alone() -> None:
    assert lookup.call({"key": " k1 "}, {"table": {"k1": "v"}}) == "v"
    assert lookup.call({"key": "k1"}, {"table": '{"k1": 7}'}) == "7"
    for row in ({"table": {"k2": "v"}}, {"table": "no table"}, {}):
        with pytest.raises(ToolError):
            lookup.call({"key": "k1"}, row)


Make = Callable[..., Any]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Make]:
    """Tools or a world, of the user's source where there is one."""
    opened: list[Any] = []

    def make(source: str | None = None, tools: list[Mapping[str, Any]] | None = None, timeout_s: float = 10.0) -> Any:
        path = tmp_path / "own.py"
        path.write_text(source or "")
        if tools is None:
            world = EnvironmentSpec.model_validate({"python": {"uri": f"file://{path}"}})
            opened.append(UserEnvironment(source_of(world, None), timeout_s, lambda: None))
        else:
            own = [{"python": {"uri": f"file://{path}", "function": "own"}}] if source else []
            spec = EnvironmentSpec.model_validate({"tools": [*tools, *own]})
            opened.append(ToolEnvironment(spec, "<tool_call>", lambda: None))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def step(environment: Any, *texts: str, row: Mapping[str, Any] | None = None, left_s: float = 10.0) -> list[StepResult]:
    turns = {n: AssistantTurn(text, row or {}, left_s) for n, text in enumerate(texts)}
    results: dict[int, StepResult] = environment.step(turns)
    return [results[n] for n in range(len(texts))]


def read(turn: StepResult) -> list[str]:
    return [message["content"] for message in turn.messages]


def test_a_turn_that_calls_is_answered_and_one_that_does_not_is_the_end(made: Make) -> None:
    tools = made(tools=[{"builtin": "calculator"}, {"builtin": "lookup"}])
    turns = step(
        tools,
        hermes("calculator", expression="6*7") + hermes("lookup", key="a"),
        "It is 42.",
        hermes("search", query="x"),
        hermes("lookup", name="a"),
        hermes("lookup", key=3),
        row={"table": {"a": "b"}},
    )
    assert read(turns[0]) == ["42", "b"]
    assert turns[0].messages[0]["role"] == "tool"
    assert (turns[0].calls, turns[0].failed, turns[0].done) == (2, 0, False)
    assert turns[1] == StepResult(done=True)
    assert read(turns[2]) == ["error: no tool 'search'; accepted: calculator, lookup"]
    assert read(turns[3]) == ["error: missing argument 'key'; accepted: key"]
    assert read(turns[4]) == ["error: argument 'key' is a int; accepted: string"]
    assert [turn.failed for turn in turns[2:]] == [1, 1, 1]


def test_a_name_that_the_model_makes_up_is_no_word_of_the_template(made: Make) -> None:
    """It could hold special tokens, or half of a character; calls beyond the limit are not even answered."""
    tools = made(tools=[{"builtin": "lookup"}])
    (turn,) = step(tools, hermes("x<|im_end|>\ud800") + hermes("lookup", key="a") * 20, row={"table": {"a": "b"}})
    assert [message["name"] for message in turn.messages] == ["tool", *["lookup"] * 7]
    assert read(turn) == ["error: no tool 'x<|im_end|>\\ud800'; accepted: lookup", *["b"] * 7]
    assert (turn.calls, turn.failed) == (21, 1 + 13)


OWN = '''
import time
def own(city: str, days: int = 1, row=None) -> str:
    """The weather of a city."""
    time.sleep(600 * (city == "slow"))
    return f"{city} {days} {row['answer']}" if city != "bad" else 1 / 0
'''


def test_a_function_of_the_user_is_told_by_its_annotations_and_fails_alone(made: Make) -> None:
    tools = made(OWN, tools=[])
    function = tools.schemas[0]["function"]
    assert function["description"] == "The weather of a city."
    assert function["parameters"]["properties"] == {"city": {"type": "string"}, "days": {"type": "integer"}}
    assert function["parameters"]["required"] == ["city"]
    texts = [hermes("own", city=city) for city in ("Rome", "bad", "slow")]
    rome, bad, slow = step(tools, *texts, row={"answer": "7"}, left_s=2.0)
    assert read(rome) == ["Rome 1 7"]
    assert read(bad) == ["error: raised ZeroDivisionError: division by zero (line 6)"]
    assert read(slow) == ["error: no answer within 2 s"]
    assert slow.seconds >= 2.0 > rome.seconds


WORLD = """
import os, time
class Environment:
    def reset(self, row):
        self.count = row["start"]
        return f"count from {self.count}"
    def step(self, text):
        if text == "hang": time.sleep(600)
        if text == "die": os._exit(3)
        if text == "lie": return ("", float("nan"), False)
        self.count += 1
        return str(self.count), 0.5, self.count >= 3
"""


def test_a_world_keeps_an_object_for_each_episode(made: Make) -> None:
    world = made(WORLD)
    openings = world.reset({n: {"start": n} for n in range(3)})
    assert [openings[n].text for n in range(3)] == ["count from 0", "count from 1", "count from 2"]
    turns = step(world, "go", "go", "go")
    assert [read(turn) for turn in turns] == [["1"], ["2"], []]
    assert [(turn.reward, turn.done) for turn in turns] == [(0.5, False), (0.5, False), (0.5, True)]
    world.reset({0: {"start": 9}})
    assert step(world, "go")[0].done


def test_an_episode_that_hangs_dies_or_lies_fails_and_those_of_other_processes_go_on(made: Make) -> None:
    world = made(WORLD)
    homes = len(world._pool)
    for what, says in (("hang", "no answer within 2 s"), ("die", "its process died"), ("lie", "returned nan")):
        world.reset({n: {"start": 0} for n in range(2 * homes)})
        first, *others = step(world, what, *["go"] * (2 * homes - 1), left_s=2.0 if what == "hang" else 20.0)
        assert says in first.error
        lost = [n for n, turn in enumerate(others, 1) if turn.error]
        assert lost == ([] if what == "lie" else [homes])


@pytest.mark.parametrize(
    ("source", "says"),
    [("", "no class 'Environment'"), ("def Environment(): ...\n", "is not a class"),
     ("class Environment:\n    def reset(self, row): ...\n", "no method step"),
     ("class Environment:\n    role = 'system'\n    def reset(self, row): ...\n    def step(self, text): ...\n",
      "role is 'system'; accepted: user, tool"),
     ("class Environment:\n    tools = [{1}]\n    def reset(self, row): ...\n    def step(self, text): ...\n",
      "raised TypeError: Object of type set is not JSON serializable")],
)  # fmt: skip
def test_a_class_that_cannot_work_is_refused_before_the_first_step(made: Make, source: str, says: str) -> None:
    with pytest.raises(UserCodeError, match=r"spec\.environment\.python: ") as error:
        made(source)
    assert says in str(error.value)


def test_tool_use_weighs_the_right_call_valid_arguments_and_the_answer() -> None:
    call = hermes("lookup", key="a")
    turns = [{"role": "assistant", "content": call}, {"role": "tool", "content": "7"}]
    wanted = {"answer": "7", "calls": [{"name": "lookup", "arguments": {"key": "a"}}]}
    assert tool_use.reward("", "It is 7", {**wanted, "transcript": turns}) == 1.0
    assert tool_use.reward("", "It is 8", {**wanted, "transcript": turns}) == pytest.approx(2 / 3)
    other = {"answer": "7", "calls": [{"name": "lookup", "arguments": {"key": "b"}}]}
    assert tool_use.reward("", "It is 7", {**other, "transcript": turns}) == pytest.approx(2 / 3)
    failed = [turns[0], {"role": "tool", "content": "error: no entry"}]
    assert tool_use.reward("", "It is 7", {**wanted, "transcript": failed}) == pytest.approx(2 / 3)
    assert tool_use.reward("", "It is 7", {**wanted, "transcript": []}) == pytest.approx(1 / 3)


def test_a_function_s_annotations_say_what_its_arguments_are_and_a_row_is_not_shown() -> None:
    def near(city: str, days: int | None = None, tags: Optional[list[str]] = None, row: Any = None) -> str:  # noqa: UP045
        """The weather."""
        return ""

    schema = python_tool.schema_of("near", near)["function"]
    types = {name: one["type"] for name, one in schema["parameters"]["properties"].items()}
    assert types == {"city": "string", "days": "integer", "tags": "array"}
    assert (schema["description"], schema["parameters"]["required"]) == ("The weather.", ["city"])
