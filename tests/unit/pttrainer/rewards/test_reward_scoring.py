"""Rewards in a run of several processes, with threads in place of processes."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tests.builders.trainer.message_store import MessageStore

from pttrainer.rewards import Sample
from pttrainer.rewards.runner import Runner, Scores
from pttrainer.rollout.context import Context
from pttrainer.rollout.scoring import leader_scores
from pttrainer.runtime.distributed import leader_messages
from pttrainer.runtime.distributed.leader_messages import LeaderMessages

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
    monkeypatch.setattr(leader_messages, "PULSE_S", 0.0)
    store = MessageStore()
    signs: dict[bool, list[int]] = {True: [], False: []}
    scores: dict[bool, Scores] = {}

    def judge(leader: bool) -> None:
        messages = LeaderMessages(store, part_bytes=7)
        context = SimpleNamespace(leader=leader, alive=lambda: signs[leader].append(1), messages=messages)
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
    assert store.values == {}
