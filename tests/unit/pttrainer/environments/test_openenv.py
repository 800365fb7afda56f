"""OpenEnv at the wire: a session for each episode, and what is the policy's fault and what is the server's."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.builders.servers.openenv import EchoServer, serving
from tests.unit.pttrainer.environments.test_environments import read, step

from ptapi.run_directory import SERVICES_ENV
from ptapi.spec import Environment as EnvironmentSpec
from pttrainer.environments.episodes.openenv_episodes import last_object
from pttrainer.environments.python_environment import UserEnvironment, source_of


@pytest.fixture(scope="module")
def echo() -> Iterator[tuple[str, EchoServer]]:
    with serving() as served:
        yield served


def world(url: str, timeout_s: float = 10.0, **fields: Any) -> UserEnvironment:
    spec = EnvironmentSpec.model_validate({"openenv": {"url": url, **fields}, "timeoutSeconds": timeout_s})
    return UserEnvironment(source_of(spec, None), timeout_s, lambda: None)


@pytest.fixture
def spoken(echo: tuple[str, EchoServer]) -> Iterator[UserEnvironment]:
    made = world(echo[0], action_field="message", observation_field="echoed_message")
    yield made
    made.close()


def test_each_episode_has_a_session_with_the_seed_of_its_row(
    echo: tuple[str, EchoServer], spoken: UserEnvironment
) -> None:
    openings = spoken.reset({0: {"seed": 7}, 1: {"seed": 8}})
    assert [openings[n].text for n in range(2)] == ["ready 7", "ready 8"]
    assert echo[1].open == 2
    replies = step(spoken, "hello", "end")
    assert read(replies[0]) == ["hello"]
    assert [(reply.reward, reply.done, reply.error) for reply in replies] == [(2.5, False, ""), (1.5, True, "")]
    spoken.reset({0: {"seed": 9}})
    until = time.monotonic() + 120
    while echo[1].open != 1 and time.monotonic() < until:  # the server learns of a session's end a moment later
        time.sleep(0.01)
    assert echo[1].open == 1


def test_an_invalid_action_is_told_to_the_policy_and_no_failure(echo: tuple[str, EchoServer]) -> None:
    free = world(echo[0])
    try:
        assert free.reset({0: {"seed": 1}})[0].text == '{"echoed_message": "ready 1", "length": 7}'
        texts = ("no braces", 'first {"message": 3}', 'I think {"a": 1}; so {"message": "hi"}.')
        replies = [step(free, text)[0] for text in texts]
    finally:
        free.close()
    assert read(replies[0]) == ["no action; accepted: a JSON object"]
    assert read(replies[1]) == ["no action; the environment says: VALIDATION_ERROR: message: a text is required"]
    assert read(replies[2]) == ['{"echoed_message": "hi", "length": 2}']
    assert [reply.error for reply in replies] == [""] * 3


@pytest.mark.parametrize(
    ("text", "words", "is_lost"),
    [("crash", "step: EXECUTION_ERROR: the game has crashed", False), ("leave", "connection lost at step", True)],
)
def test_a_failure_of_the_environment_leaves_its_episode_without_a_reward_and_no_other(
    spoken: UserEnvironment, text: str, words: str, is_lost: bool
) -> None:
    spoken.reset({n: {"seed": n} for n in range(2)})
    failed, other = step(spoken, text, "fine")
    assert words in failed.error
    assert failed.is_lost == is_lost
    assert (other.error, other.reward) == ("", 2.0)


def test_a_late_answer_costs_its_own_episode_alone(echo: tuple[str, EchoServer]) -> None:
    hasty = world(echo[0], timeout_s=1.0, action_field="message")
    try:
        homes = len(hasty._pool)
        hasty.reset({n: {"seed": n} for n in range(2 * homes)})
        late, *others = step(hasty, "hang", *["fine"] * (2 * homes - 1))
    finally:
        hasty.close()
    assert "no answer to step within 0.9 s" in late.error
    assert late.is_lost
    assert [other.error for other in others] == [""] * (2 * homes - 1)


def test_a_full_server_and_none_are_failures_with_their_reason() -> None:
    with serving(sessions=1) as (url, _):
        full = world(url, action_field="message")
        try:
            openings = full.reset({n: {"seed": n} for n in range(2)})
        finally:
            full.close()
    assert sorted(bool(opening.error) for opening in openings.values()) == [False, True]
    assert any("CAPACITY_REACHED: 1 of 1 sessions" in opening.error for opening in openings.values() if opening.is_lost)
    gone = world(url, timeout_s=2.0)
    try:
        opening = gone.reset({0: {}})[0]
        assert "no answer to reset within 1.8 s" in opening.error
        assert opening.is_lost
    finally:
        gone.close()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [('{"a": {"b": 1}}', {"a": {"b": 1}}), ('{"a": 1} {"b": 2} {', {"b": 2}), ("{", None), ("{" * 100_000, None)],
)
def test_the_last_whole_object_is_the_action(text: str, wanted: dict[str, Any] | None) -> None:
    assert last_object(text) == wanted


# A server that is a service of the job


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EchoServer]]:
    with serving() as (first, one), serving() as (second, other):
        monkeypatch.setenv(SERVICES_ENV, json.dumps({"game": [first, second]}))
        yield [one, other]


def game(timeout_s: float = 20.0) -> UserEnvironment:
    spec = {"openenv": {"service": "game", "actionField": "message"}, "timeoutSeconds": timeout_s}
    return UserEnvironment(source_of(EnvironmentSpec.model_validate(spec), None), timeout_s, lambda: None)


def test_episodes_are_spread_over_the_replicas_and_each_stays_with_its_own(replicas: list[EchoServer]) -> None:
    made = game()
    try:
        children = len(made._pool)
        made.reset({n: {"seed": n} for n in range(4 * children)})
        assert [server.open for server in replicas] == [2 * children, 2 * children]
        for server in replicas:
            server.messages.clear()
        answers = step(made, *["hi"] * (4 * children))
        assert [answer.error for answer in answers] == [""] * (4 * children)
        assert [len(server.messages) for server in replicas] == [2 * children, 2 * children]
    finally:
        made.close()


def test_episodes_of_a_replica_that_is_gone_are_lost_and_later_ones_go_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving() as (first, one), ExitStack() as others:
        second, _ = others.enter_context(serving())
        monkeypatch.setenv(SERVICES_ENV, json.dumps({"game": [second, first]}))
        made = game()
        try:
            episodes = range(4 * len(made._pool))
            made.reset({n: {"seed": n} for n in episodes})
            others.close()
            answers = step(made, *["hi"] * len(episodes))
            assert sorted({(answer.is_lost, bool(answer.error)) for answer in answers}) == [
                (False, False),
                (True, True),
            ]
            openings = made.reset({n: {"seed": n} for n in episodes})
            assert [opening.error for opening in openings.values()] == [""] * len(episodes)
            assert one.open == len(episodes)
        finally:
            made.close()
