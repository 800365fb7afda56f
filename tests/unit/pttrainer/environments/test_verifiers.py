"""Environments of `verifiers` packages: rollouts that wait for turns, rubrics, and whose fault a failure is.

The package is a small one of the same protocol, in the form of 0.1.8 and of 0.1.14; `make verifiers` plays the real
one.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.builders.trainer import small_verifiers
from tests.unit.pttrainer.environments.test_environments import hermes, read, step

from ptapi.spec import DataSource
from ptapi.spec import Environment as EnvironmentSpec
from pttrainer.data.rows.load import load
from pttrainer.environments.environment import RowPrompt
from pttrainer.environments.episodes import verifiers_rows
from pttrainer.environments.episodes.verifiers_episodes import Rollouts, loaded, why_refused
from pttrainer.environments.python_environment import source_of
from pttrainer.environments.verifiers_environment import VerifiersEnvironment
from pttrainer.sandbox.user_code import RewardCodeError, ServerGone

GUESS = """
async def won(state):
    return float(state["turns"][-1]["content"] == state["answer"])

async def turns(state):
    if "bug" in state["turns"][-1]["content"]:
        raise ValueError("my rubric broke")
    return len(state["turns"])

async def group_shortest(states):
    sizes = [len(state["turns"][-1]["content"]) for state in states]
    return [float(size == min(sizes)) for size in sizes]

class Guess(Environment):
    def is_over(self, state):
        return state["turns"][-1]["content"] in (state["answer"], "I give up", "bug")

    async def env_response(self, messages, state):
        said = messages[-1]["content"]
        if said == "crash":
            raise KeyError("oops")
        if said == "leave":
            raise InfraError("no sandbox")
        if said == "silent":
            return []
        if said == "system":
            return [{"role": "system", "content": "think"}]
        if said == "rewrite":
            messages[0]["content"] = "Another question."
        return [{"role": "user", "content": "higher" if said < state["answer"] else "lower"}]

def load_environment(group=False, **fields):
    rubric = Rubric([won, turns, *([group_shortest] if group else [])], [1.0, 0.25, *([2.0] if group else [])])
    return Guess(rubric if group else RubricGroup([rubric]), **fields)
"""
TOOLS = """
async def right(state):
    return float(state["turns"][-1]["content"] == state["answer"]) + state.get("asked", 0)

def look(state, word):
    state["asked"] = state.get("asked", 0) + 1
    return word * 2

def load_environment():
    return Environment(Rubric([right]), tools={"look": look})
"""


@pytest.fixture(scope="module", params=["plain", "wrapped"])
def packages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory of packages: an early release of the protocol, or a later one."""
    name = request.param
    directory = tmp_path_factory.mktemp(name)
    line = small_verifiers.write(directory, f"verifiers_{name}", wraps_clients=name == "wrapped")
    (directory / "guess_env.py").write_text(line + GUESS)
    (directory / "tools_env.py").write_text(line + TOOLS)
    sys.path.append(str(directory))
    yield directory
    sys.path.remove(str(directory))
    for module in ("guess_env", "tools_env"):
        sys.modules.pop(module, None)


Play = Callable[..., Rollouts]


@pytest.fixture
def play(packages: Path) -> Iterator[Play]:
    """Makes the rollouts of an environment, in this process."""
    with asyncio.Runner() as loop:
        made: list[Rollouts] = []

        def make(name: str, **arguments: Any) -> Rollouts:
            made.append(Rollouts(loaded(name, arguments), "hermes", loop))
            return made[-1]

        yield make
        for rollouts in made:
            rollouts.answer(["forget", 0, None])


def begin(rollouts: Rollouts, *episodes: int, prompt: str = "Guess.", answer: str = "7") -> list[Any]:
    messages = [{"role": "user", "content": prompt}]
    return [rollouts.answer(["reset", n, {"row": {"answer": answer}, "messages": messages}]) for n in episodes]


def score(rollouts: Rollouts, *ended: Sequence[Any]) -> list[Any]:
    answers: list[dict[str, Any]] = rollouts.answer(["score", 0, list(ended)])
    return [answer.get("reward", answer.get("error")) for answer in answers]


def test_a_rollout_of_many_turns_waits_for_each_and_is_scored_by_its_weighted_rubric(play: Play) -> None:
    guess = play("guess-env")
    assert begin(guess, 0, 1) == [[], []]
    assert guess.answer(["step", 0, "3"]) == [[{"role": "user", "content": "higher"}], False, 0, 0]
    assert guess.answer(["step", 1, "9"]) == [[{"role": "user", "content": "lower"}], False, 0, 0]
    assert guess.answer(["step", 0, "7"]) == [[], True, 0, 0]
    assert guess.answer(["step", 1, "I give up"]) == [[], True, 0, 0]
    assert score(guess, [0, None], [1, None]) == [1.5, 0.5]


def test_an_episode_that_gets_no_more_turns_is_scored_as_it_stands(play: Play) -> None:
    guess = play("guess_env")
    begin(guess, 0, 1)
    for episode in (0, 1):
        guess.answer(["step", episode, "3"])
    assert score(guess, [0, "7"], [1, None]) == [1.5, 0.25]


def test_the_environment_s_system_prompt_comes_first_where_the_row_has_none(play: Play) -> None:
    (first,) = begin(play("guess_env", system_prompt="Be brief."), 0)
    assert first == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Guess."}]


def test_group_functions_compare_the_samples_of_one_prompt(play: Play) -> None:
    guess = play("guess_env", group=True)
    begin(guess, 0, 1)
    guess.answer(["step", 0, "7"])
    guess.answer(["step", 1, "I give up"])
    assert score(guess, [0, None], [1, None]) == [3.25, 0.25]


def test_a_reward_function_that_raises_is_no_reward_of_0(play: Play) -> None:
    for group, other in ((False, 1.25), (True, "a reward function raised ValueError: my rubric broke")):
        guess = play("guess_env", group=group)
        begin(guess, 0, 1)
        guess.answer(["step", 0, "bug"])
        guess.answer(["step", 1, "7"])
        assert score(guess, [0, None], [1, None]) == ["a reward function raised ValueError: my rubric broke", other]


def test_failures_of_the_environment_and_of_its_services_are_told_apart(play: Play) -> None:
    guess = play("guess_env")
    begin(guess, 0, 1, 2)
    with pytest.raises(RewardCodeError, match="raised KeyError: 'oops'") as failed:
        guess.answer(["step", 0, "crash"])
    assert not isinstance(failed.value, ServerGone)
    with pytest.raises(ServerGone, match="raised InfraError: no sandbox"):
        guess.answer(["step", 1, "leave"])
    guess.answer(["step", 2, "7"])
    assert score(guess, [0, None], [1, None], [2, None]) == [
        "raised KeyError: 'oops'",
        "raised InfraError: no sandbox",
        1.25,
    ]


def test_a_conversation_that_is_rewritten_or_does_not_go_on_is_refused(play: Play) -> None:
    guess = play("guess_env")
    begin(guess, 0, 1)
    assert guess.answer(["step", 1, "system"])[0] == [{"role": "user", "content": "think"}]
    with pytest.raises(RewardCodeError, match="answers a turn as 'nobody'; accepted: user, tool, system"):
        guess.answer(["step", 1, "silent"])
    with pytest.raises(RewardCodeError, match="rewrites the conversation between turns"):
        guess.answer(["step", 0, "rewrite"])


def test_calls_of_tools_are_answered_and_their_state_is_the_episode_s(play: Play) -> None:
    tools = play("tools_env")
    begin(tools, 0, 1, answer="done")
    call = "Let me see. " + hermes("look", word="ab") + hermes("look", word="c")
    messages, done, calls, failed = tools.answer(["step", 0, call])
    assert [(m["role"], m["name"], m["content"]) for m in messages] == [
        ("tool", "look", "abab"),
        ("tool", "look", "cc"),
    ]
    assert (done, calls, failed) == (False, 2, 0)
    ((wrong,), done, *counts) = tools.answer(["step", 1, hermes("destroy")])
    assert (wrong["name"], wrong["content"], done, counts) == ("tool", "KeyError('destroy')", False, [1, 0])
    assert tools.answer(["step", 1, "<tool_call>{"]) == [[], True, 1, 1]
    assert tools.answer(["step", 0, "done"]) == [[], True, 0, 0]
    assert score(tools, [0, None], [1, None]) == [3.0, 0.0]


def test_what_cannot_be_played_is_refused_with_its_reason(packages: Path) -> None:
    guess = loaded("guess_env", {})
    assert why_refused(guess) == ""
    guess.rubric.rubrics[0].judge_client = object()
    assert "its Rubric asks a judge model that the job does not have" in why_refused(guess)
    assert "Guess completes texts; accepted: environments with chat messages" in why_refused(
        loaded("guess_env", {"message_type": "completion"})
    )
    assert "load_environment made a object, which cannot be played; accepted: an Environment of" in why_refused(
        object()
    )


def test_its_data_set_is_written_as_rows_that_a_job_reads(
    packages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "data" / "rows.jsonl"
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Guess."}]
    rows = [{"prompt": prompt, "answer": str(n), "info": {"n": n}} for n in range(2)]
    assert verifiers_rows.main(["guess-env", "--arguments", json.dumps({"rows": rows}), "--out", str(file)]) == 0
    (first, _) = load(DataSource(uri=f"file://{file}"), "spec.data.train").rows
    assert (list(first.prompt), first.answer, first.fields["info"]) == (prompt, "0", {"n": 0})
    assert verifiers_rows.main(["no-such-env", "--out", str(file)]) == 1
    assert "error: no-such-env: cannot be imported" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("owner/no-such-env", "no-such-env: cannot be imported: ModuleNotFoundError: .*hint: name the package, and"),
        ("json", "json: module json has no function load_environment"),
        ("guess_env", "guess_env: load_environment raised TypeError"),
    ],
)
def test_an_environment_that_cannot_be_loaded_is_named(packages: Path, name: str, words: str) -> None:
    with pytest.raises(RewardCodeError, match=words):
        loaded(name, {"group": True, "rubric": 1})


def test_in_child_processes_the_samples_of_a_prompt_are_scored_together(packages: Path) -> None:
    spec = EnvironmentSpec.model_validate({"verifiers": {"id": "guess-env", "arguments": {"group": True}}})
    environment = VerifiersEnvironment(source_of(spec, str(packages), "<tool_call>"), 60.0, lambda: None)
    try:
        prompts = {n: RowPrompt([{"role": "user", "content": "Guess."}], n // 2) for n in range(4)}
        openings = environment.reset({n: {"answer": "7"} for n in range(4)}, prompts)
        assert [(opening.error, opening.messages) for opening in openings.values()] == [("", [])] * 4
        replies = step(environment, "7", "I give up", "5", "leave")
        assert read(replies[2]) == ["higher"]
        assert [(reply.done, reply.is_lost) for reply in replies] == [
            (True, False), (True, False), (False, False), (True, True),
        ]  # fmt: skip
        rewards = environment.finish({0: None, 1: None, 2: "7 or"})
        assert [rewards[n].reward for n in range(3)] == [3.25, 0.25, 2.5]
        assert [rewards[n].error for n in range(3)] == [""] * 3
    finally:
        environment.close()
