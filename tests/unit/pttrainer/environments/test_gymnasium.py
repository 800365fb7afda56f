"""Gymnasium's own environments through child processes, and packages that pip installs for them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete, Text
from tests.builders.trainer import packages as wheels
from tests.unit.pttrainer.environments.test_environments import read, step

from ptapi.spec import Environment as EnvironmentSpec
from pttrainer.environments import packages
from pttrainer.environments.episodes import gymnasium_episodes, python_episodes
from pttrainer.environments.python_environment import UserEnvironment, source_of
from pttrainer.errors import UserCodeError

LAKE = {"id": "FrozenLake-v1", "arguments": {"render_mode": "ansi", "is_slippery": False},
        "actions": ["left", "down", "right", "up"]}  # fmt: skip


def world(gymnasium: dict[str, Any], directory: str | None = None) -> UserEnvironment:
    spec = EnvironmentSpec.model_validate({"gymnasium": gymnasium})
    return UserEnvironment(source_of(spec, directory), 10.0, lambda: None)


@pytest.fixture(scope="module")
def lake() -> Iterator[UserEnvironment]:
    made = world(LAKE)
    yield made
    made.close()


def test_the_lake_is_walked_by_words_to_its_reward(lake: UserEnvironment) -> None:
    first = lake.reset({0: {"q": "a"}})[0]
    assert first.text.startswith("\n[S]FFF")
    replies = [step(lake, text)[0] for text in ("I go Down.", "left? no: down", "right", "right", "down")]
    assert read(replies[0]) == ["  (Down)\nSFFF\n[F]HFH\nFFFH\nHFFG\n"]
    assert [reply.reward for reply in replies] == [0.0] * 5
    (goal,) = step(lake, "right")
    assert (goal.reward, goal.done, goal.error) == (1.0, True, "")


def test_a_text_without_an_action_is_the_policy_s_mistake_and_no_failure(lake: UserEnvironment) -> None:
    lake.reset({0: {}})
    (reply,) = step(lake, "I stay where I am, downstairs")
    assert read(reply) == ["no action; accepted: left, down, right, up"]
    assert (reply.reward, reply.done, reply.error) == (0.0, False, "")


def test_a_failure_of_the_environment_is_no_reward_of_0(lake: UserEnvironment) -> None:
    lake.reset({0: {}})
    _, reply = step(lake, "down", "down")  # the second one was never begun
    assert reply.error == "another episode ended the process that both shared"


@pytest.mark.parametrize(
    ("gymnasium", "words"),
    [
        ({"id": "NoSuchLake-v1"}, "NoSuchLake-v1: cannot be made: NameNotFound"),
        ({"id": "Pendulum-v1"}, "Pendulum-v1: its actions are Box.*; accepted: Discrete, Text"),
        ({"id": "FrozenLake-v1", "actions": ["left"]}, "1 names in actions, but its actions are Discrete"),
        ({"id": "FrozenLake-v1", "arguments": {"size": 3}}, "cannot be made: TypeError"),
        ({"id": "no_such_module:Game-v0"}, "cannot be made: ModuleNotFoundError"),
    ],
)
def test_what_cannot_be_played_is_refused_before_the_first_step(gymnasium: dict[str, Any], words: str) -> None:
    with pytest.raises(UserCodeError, match=f"spec.environment.gymnasium: .*{words}"):
        world(gymnasium)


@pytest.mark.parametrize(
    ("text", "action"),
    [("2", 2), ("first 1, then 3", 3), ("4", None), ("1.5", None), ("go3", None), ("-1", None), ("none", None)],
)
def test_the_last_whole_number_is_the_action(text: str, action: int | None) -> None:
    assert gymnasium_episodes.action_of(text, Discrete(4), ()) == action


def test_spaces_that_begin_elsewhere_and_text() -> None:
    assert gymnasium_episodes.action_of("5", Discrete(2, start=5), ()) == 5
    assert gymnasium_episodes.action_of("no", Discrete(2, start=5), ("yes", "no")) == 6
    assert gymnasium_episodes.action_of("hello", Text(5), ()) == "hello"
    assert gymnasium_episodes.action_of("hello!", Text(5), ()) is None
    assert python_episodes.shown({"at": np.float32([0.123456, 2])}) == '{"at": [0.1235, 2.0]}'


def test_episodes_of_one_row_begin_alike_and_those_of_others_do_not() -> None:
    rows: list[dict[str, Any]] = [{"seed": 3}, {"seed": 3, "q": "?"}, {"q": "?"}, {"q": "?"}, {"q": "!"}]
    seeds = [python_episodes.seed_of(row) for row in rows]
    assert seeds[0] == seeds[1] == 3
    assert seeds[2] == seeds[3] != seeds[4]


def test_a_package_is_installed_once_and_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "import gymnasium\n"
        "from gymnasium.spaces import Text\n"
        "class Echo(gymnasium.Env):\n"
        "    action_space = observation_space = Text(99)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        return f'seed {seed}', {}\n"
        "    def step(self, action):\n"
        "        return action[::-1], len(action) / 10, False, action == 'end', {}\n"
        "gymnasium.register('Echo-v0', Echo)\n"
    )
    for name, value in wheels.only(wheels.wheel(tmp_path, "echo_game", "1.2", source)).items():
        monkeypatch.setenv(name, value)
    notes: list[str] = []
    directory = packages.installed(["echo_game==1.2"], notes.append)
    assert packages.installed(["echo_game==1.2"], notes.append) == directory
    assert notes == ["installing echo_game==1.2"]
    echo = world({"id": "echo_game:Echo-v0"}, directory)
    try:
        assert echo.reset({0: {"seed": 7}})[0].text == "seed 7"
        assert read(step(echo, "abc")[0]) == ["cba"]
    finally:
        echo.close()


def test_a_package_that_no_index_has_is_refused_with_pip_s_reason_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in wheels.only(wheels.wheel(tmp_path, "other", "1.0", "")).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        UserCodeError, match=r"spec.environment.packages: missing==1.0: pip cannot install them: .*ERROR"
    ):
        packages.installed(["missing==1.0"], lambda line: None)
    assert list((tmp_path / "cache" / "posttrain" / "packages").iterdir()) == []
