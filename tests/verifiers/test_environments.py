"""Environments of the real `verifiers` package, written for these tests: none of its hub's packages is played here."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.pttrainer.environments.test_environments import hermes, read, step

from ptapi.spec import Environment as EnvironmentSpec
from pttrainer.environments.environment import RowPrompt
from pttrainer.environments.python_environment import source_of
from pttrainer.environments.verifiers_environment import VerifiersEnvironment
from pttrainer.errors import UserCodeError

PACKAGES = os.environ["VERIFIERS"]
SOURCES = {
    "vf_single": """
import asyncio, os
import verifiers as vf
from datasets import Dataset

def load_environment(group=False, judge=False):
    rows = Dataset.from_list([{"question": f"What is {i}+1?", "answer": str(i + 1)} for i in range(4)])
    def exact(completion, answer):
        return float(completion[-1]["content"].strip() == answer)
    async def short(parser, completion, state):
        await asyncio.sleep(0)
        if "bug" in completion[-1]["content"]:
            raise ValueError("my rubric broke")
        return float(len(completion[-1]["content"]) < 3)
    def shortest(completions, answers) -> list[float]:
        sizes = [len(completion[-1]["content"]) for completion in completions]
        return [float(size == min(sizes)) for size in sizes]
    rubric = vf.Rubric([exact, short, *([shortest] if group else [])], [1.0, 0.5, *([2.0] if group else [])])
    if judge:
        os.environ["OPENAI_API_KEY"] = "none"
        rubric = vf.JudgeRubric()
    return vf.SingleTurnEnv(dataset=rows, system_prompt="Be brief.", rubric=rubric)
""",
    "vf_guess": """
import verifiers as vf
from datasets import Dataset

class Guess(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        said = messages[-1]["content"].strip()
        if said == "leave":
            raise vf.SandboxError("the sandbox is gone")
        if said == "crash":
            raise KeyError("oops")
        if said == state["answer"]:
            state["final_env_response"] = [{"role": "user", "content": "right"}]
            return state["final_env_response"]
        return [{"role": "user", "content": "higher" if said < state["answer"] else "lower"}]

    @vf.stop
    async def gave_up(self, state):
        return bool(state["trajectory"]) and "give up" in state["trajectory"][-1]["completion"][-1]["content"]

def load_environment():
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": "Guess."}], "answer": "7"}])
    def won(state):
        return float(state.get("final_env_response") is not None)
    def turns(state):
        return float(len(state["trajectory"]))
    return Guess(dataset=rows, rubric=vf.Rubric([won, turns], [1.0, 0.25]), max_turns=8)
""",
    "vf_tools": """
import verifiers as vf
from datasets import Dataset

def add(a: int, b: int) -> str:
    '''Add two numbers.'''
    return str(a + b)

class Kept(vf.StatefulToolEnv):
    def __init__(self, **kwargs):
        super().__init__(tools=[], **kwargs)
        self.add_tool(self.keep, args_to_skip=["state"])

    async def keep(self, word: str, state: dict) -> str:
        '''Keep a word.'''
        state.setdefault("kept", []).append(word)
        return f"kept {len(state['kept'])}"

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "state": state}

def load_environment(stateful=False):
    rows = Dataset.from_list([{"question": "1+2?", "answer": "3"}])
    def exact(completion, answer):
        return float(completion[-1]["content"].strip() == answer)
    def kept(state):
        return float(len(state.get("kept", [])))
    if stateful:
        return Kept(dataset=rows, rubric=vf.Rubric([kept]))
    return vf.ToolEnv(dataset=rows, tools=[add], rubric=vf.Rubric([exact]))
""",
}


@pytest.fixture(scope="module", autouse=True)
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    directory = tmp_path_factory.mktemp("modules")
    for name, source in SOURCES.items():
        (directory / f"{name}.py").write_text(source)
    sys.path.append(str(directory))
    yield
    sys.path.remove(str(directory))


@pytest.fixture
def play() -> Iterator[Any]:
    opened: list[VerifiersEnvironment] = []

    def make(name: str, **arguments: Any) -> VerifiersEnvironment:
        spec = EnvironmentSpec.model_validate({"verifiers": {"id": name, "arguments": arguments}})
        opened.append(VerifiersEnvironment(source_of(spec, str(Path(PACKAGES)), "<tool_call>"), 60.0, lambda: None))
        return opened[-1]

    yield make
    for environment in opened:
        environment.close()


def begin(environment: VerifiersEnvironment, count: int, prompt: str, answer: str) -> list[Any]:
    prompts = {n: RowPrompt([{"role": "user", "content": prompt}], 0) for n in range(count)}
    openings = environment.reset({n: {"question": prompt, "answer": answer} for n in range(count)}, prompts)
    assert [opening.error for opening in openings.values()] == [""] * count
    return list(openings.values())


def test_a_turn_is_scored_by_weighted_functions_and_one_that_raises_is_no_reward_of_0(play: Any) -> None:
    single = play("vf-single")
    assert [m["role"] for m in begin(single, 5, "What is 1+1?", "2")[0].messages] == ["system", "user"]
    assert all(reply.done for reply in step(single, "2", "3", "two long", "bug", ""))
    scored = single.finish(dict.fromkeys(range(5)))
    assert [scored[n].reward for n in (0, 1, 2, 4)] == [1.5, 0.5, 0.0, 0.5]
    assert scored[3].error == "a reward function raised ValueError: my rubric broke"
    begin(single, 1, "What is 1+1?", "2")
    assert single.finish({0: "2"})[0].reward == 1.5


def test_group_functions_compare_the_samples_of_a_prompt(play: Any) -> None:
    single = play("vf_single", group=True)
    begin(single, 2, "What is 1+1?", "2")
    step(single, "2", "22222")
    assert [result.reward for result in single.finish({0: None, 1: None}).values()] == [3.5, 0.0]


def test_a_judge_is_refused(play: Any) -> None:
    with pytest.raises(UserCodeError, match="its JudgeRubric asks a judge model that the job does not have"):
        play("vf_single", judge=True)


def test_turns_stop_conditions_and_failures_are_the_environment_s_own(play: Any) -> None:
    guess = play("vf_guess")
    assert all(opening.messages == [] for opening in begin(guess, 5, "Guess.", "7"))
    replies = step(guess, "3", "I give up", "leave", "crash", "9")
    assert (read(replies[0]), read(replies[4])) == (["higher"], ["lower"])
    assert (replies[1].done, replies[1].error) == (True, "")
    # Until 0.1.8 an error of a sandbox is none of its own.
    assert (replies[2].error, replies[2].is_lost) == ("raised SandboxError: the sandbox is gone", True)
    assert (replies[3].error, replies[3].is_lost) == ("raised KeyError: 'oops'", False)
    step(guess, "7")
    scored = guess.finish({0: None, 1: None, 4: None})
    assert [scored[n].reward for n in (0, 1, 4)] == [1.5, 0.25, 0.25]


def test_tools_are_called_with_the_state_of_their_episode(play: Any) -> None:
    tools = play("vf_tools")
    assert [schema["function"]["name"] for schema in tools.schemas] == ["add"]
    begin(tools, 3, "1+2?", "3")
    replies = step(tools, hermes("add", a=1, b=2), hermes("add", a="x", b=2), "<tool_call>{")
    assert read(replies[0]) == ["3"]
    assert "can only concatenate str" in read(replies[1])[0]
    assert (replies[2].done, replies[2].failed) == (True, 1)
    step(tools, "3", "4")
    assert [result.reward for result in tools.finish(dict.fromkeys(range(3))).values()] == [1.0, 0.0, 0.0]
    kept = play("vf_tools", stateful=True)
    assert list(kept.schemas[0]["function"]["parameters"]["properties"]) == ["word"]
    begin(kept, 2, "1+2?", "3")
    replies = step(kept, hermes("keep", word="a"), hermes("keep", word="b") + hermes("keep", word="c"))
    assert [read(reply) for reply in replies] == [["kept 1"], ["kept 1", "kept 2"]]
    step(kept, "done", "done")
    assert [result.reward for result in kept.finish({0: None, 1: None}).values()] == [1.0, 2.0]
