"""Samples that the leader of several processes gets, on all of them; threads are the processes."""

import threading
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from tests.builders.trainer.message_store import MessageStore

from pttrainer.errors import ServiceLost, TrainerError
from pttrainer.rollout.disaggregated.in_flight.remote_calls import Continued
from pttrainer.rollout.disaggregated.separate.sampler_pods import SamplerPods
from pttrainer.rollout.disaggregated.separate.shared_draws import FollowersPods, GatheredVersion, LeadersPods, Pods
from pttrainer.rollout.engine import Completions
from pttrainer.runtime.distributed.leader_messages import LeaderMessages

VERSION = GatheredVersion("v")


def completions(first: int) -> Completions:
    tokens_NT = np.arange(first, first + 6, dtype=np.int32).reshape(2, 3)
    logps_NT = -tokens_NT.astype(np.float32) / 7
    routes = [np.full((2, 1, 2), first, np.uint8)] * 2
    return Completions(tokens_NT, logps_NT, np.array([3, 1]), np.array([True, False]), {"a": 0.1}, routes, routes[:1])


class OwnPods:
    """The leader's samplers: what they answer, or fail with."""

    def __init__(self, result: dict[int, Any] | Exception) -> None:
        self._result = result

    def draw(self, version: Any, shares: Any, alive: Callable[[], None]) -> dict[int, Any]:
        alive()
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


def on_both(result: dict[int, Any] | Exception) -> list[Any]:
    """Return what the leader and another process get, or the error that each has."""
    store = MessageStore()
    leader = LeadersPods(cast(SamplerPods, OwnPods(result)), LeaderMessages(store))
    ends: list[Any] = [None, None]

    def draw(index: int, pods: Pods) -> None:
        try:
            ends[index] = pods.draw(VERSION, {}, lambda: None)
        except TrainerError as error:
            ends[index] = error

    other = threading.Thread(target=draw, args=(1, FollowersPods(LeaderMessages(store))), daemon=True)
    other.start()
    draw(0, leader)
    other.join(timeout=30)
    assert store.values == {}
    return ends


def test_all_processes_get_the_completions_of_every_share_to_the_bit() -> None:
    drawn = {2: completions(5), 0: completions(90)}
    own, others = on_both(drawn)
    assert own is drawn
    assert list(others) == [2, 0]
    for home, done in drawn.items():
        for mine, arrived in zip(done[:4], others[home][:4], strict=True):
            np.testing.assert_array_equal(arrived, mine, strict=True)
        assert others[home].facts == done.facts
        np.testing.assert_array_equal(np.stack(others[home].routes), np.stack(list(done.routes or [])))
        assert len(others[home].prompt_routes) == 1


def test_all_processes_get_what_was_added_to_samples() -> None:
    arrays = np.array([2, 0]), np.array([7, 8]), np.array([-0.5, -1.5], np.float32), np.array([True, False])
    drawn = {1: Continued(*arrays, np.array([True, True]))}
    own, others = on_both(drawn)
    assert own is drawn
    for mine, arrived in zip(drawn[1], others[1], strict=True):
        np.testing.assert_array_equal(arrived, mine, strict=True)


@pytest.mark.parametrize("kind", [ServiceLost, TrainerError])
def test_what_ends_the_leaders_call_ends_it_on_all_processes(kind: type[TrainerError]) -> None:
    own, others = on_both(kind("no sampler could be reached"))
    assert type(others) is type(own) is kind
    assert str(others) == str(own)
