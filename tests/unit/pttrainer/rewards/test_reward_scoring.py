"""Rewards in a run of several processes, with a broadcast between threads in place of the network."""

import queue
import threading
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from jax.experimental import multihost_utils

from pttrainer.rewards import Sample
from pttrainer.rewards.runner import Runner, Scores
from pttrainer.rollout.context import Context
from pttrainer.rollout.scoring import leader_scores

SAMPLES = [Sample("", "", {})] * 3
SCORES = Scores({"own": np.array([0.1, np.nan, 1e-9])}, np.array([0.2, np.nan, 2e-9]), {"seconds": 3.0})


class SlowRunner:
    """Judges once the leader has reported five times that it waits."""

    names = ("own",)

    def score(self, samples: Any, alive: Any, of_models: Any) -> Scores:
        for _ in range(5):
            alive()
        return SCORES


def test_all_processes_get_the_leader_s_scores_and_stay_alive_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: queue.Queue[Any] = queue.Queue()
    lead = threading.current_thread()

    def broadcast(value: Any) -> Any:
        if threading.current_thread() is lead:
            sent.put(value)
            return value
        return sent.get(timeout=30)

    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", broadcast)
    monkeypatch.setattr(leader_scores, "PULSE_S", 0.0)
    signs: dict[bool, list[int]] = {True: [], False: []}
    scores: dict[bool, Scores] = {}

    def judge(leader: bool) -> None:
        context = SimpleNamespace(leader=leader, alive=lambda: signs[leader].append(1))
        scores[leader] = leader_scores.score(cast(Context, context), cast(Runner, SlowRunner()), SAMPLES, {})

    other = threading.Thread(target=judge, args=(False,), daemon=True)
    other.start()
    judge(True)
    other.join(timeout=30)
    assert scores[True] is SCORES
    np.testing.assert_array_equal(scores[False].rewards["own"], SCORES.rewards["own"])
    np.testing.assert_array_equal(scores[False].total, SCORES.total)
    assert scores[False].facts == {}
    assert (len(signs[True]), len(signs[False])) == (5, 6)
