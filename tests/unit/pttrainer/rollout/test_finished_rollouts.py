"""Finished rollouts: a later attempt takes those that its own weights drew, and no others."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tests.builders.trainer.message_store import MessageStore

from ptapi import run_directory
from pttrainer.batch import Batch, Images
from pttrainer.rollout.disaggregated.finished_rollouts import FinishedRollouts, corners
from pttrainer.rollout.engine import SamplerWeights
from pttrainer.rollout.rollout_data import Rollout
from pttrainer.runtime.distributed.leader_messages import LeaderMessages
from pttrainer.runtime.io.directory import Directory


def rollout(number: int, **parts: Any) -> Rollout:
    whole = np.full((2, 3), number, np.int32)
    batch = Batch(whole, whole, whole, whole, whole.astype(np.float32) / 3, whole.astype(np.float32), **parts)
    return Rollout(0, [], {"reward": number / 3, "seconds/generate": 9.0}, rows=batch, table=[{"prompt": "p"}])


class Prompts:
    """Prompts of which each rollout draws ten."""

    def __init__(self) -> None:
        self.drawn = 0

    def state(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.drawn = state["drawn"]


class Attempt:
    """One attempt of a run; its rollouts hold how many it has drawn by itself."""

    def __init__(self, home: Path, messages: LeaderMessages | None = None, leader: bool = True) -> None:
        self.prompts, self.drawn = Prompts(), 0
        self.lines: list[str] = []
        self.finished = FinishedRollouts(Directory(home), messages, self.lines.append, lambda: None, leader=leader)

    def take(self, step: int, weights: float = 0.0, **parts: Any) -> Rollout:
        identity = corners({"w": jnp.full((3, 100), weights + step), "b": jnp.zeros(5)})
        return self.finished.or_drawn(
            step, SamplerWeights({}, step, identity), self.prompts, lambda *_: self.draw(parts)
        )

    def draw(self, parts: dict[str, Any]) -> Rollout:
        self.prompts.drawn += 10
        self.drawn += 1
        return rollout(self.drawn, **parts)


def files(home: Path) -> list[str]:
    return Directory(home).names(run_directory.ROLLOUTS)


def test_a_later_attempt_takes_what_the_same_weights_drew_to_the_bit(tmp_path: Path) -> None:
    first = Attempt(tmp_path)
    drawn = [first.take(step) for step in range(4)]
    first.finished.close()
    second = Attempt(tmp_path)
    taken = [second.take(step) for step in (2, 3)]
    assert second.drawn == 0
    for was, now in zip(drawn[2:], taken, strict=True):
        assert np.array_equal(was.batch.mask_BT, now.batch.mask_BT)
        assert was.table == now.table
        assert now.facts == {"reward": was.facts["reward"]}, "it took no seconds to draw"
    assert second.prompts.drawn == 40
    assert second.lines == [
        f"step {n}: takes the samples that an earlier attempt drew with the same weights" for n in (3, 4)
    ]
    second.take(4)
    assert second.drawn == 1


def test_other_weights_draw_anew_and_replace_the_file(tmp_path: Path) -> None:
    first = Attempt(tmp_path)
    first.take(0)
    first.finished.close()
    second = Attempt(tmp_path)
    second.take(0, weights=1e-6)
    second.finished.close()
    assert (second.drawn, second.lines) == (1, [])
    third = Attempt(tmp_path)
    third.take(0)
    third.finished.close()
    assert third.drawn == 1, "the file is of the second attempt's weights"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"weights": 1}', b"\xff"])
def test_a_damaged_file_is_drawn_again(tmp_path: Path, content: bytes) -> None:
    first = Attempt(tmp_path)
    first.take(0)
    first.finished.close()
    (tmp_path / run_directory.rollout_file(0)).write_bytes(content)
    (tmp_path / run_directory.ROLLOUTS / "notes.txt").write_text("of a person")
    second = Attempt(tmp_path)
    second.take(0)
    assert second.drawn == 1


def test_what_a_checkpoint_has_behind_it_is_removed(tmp_path: Path) -> None:
    first = Attempt(tmp_path)
    for step in range(4):
        first.take(step)
    first.finished.close()
    second = Attempt(tmp_path)
    second.take(2)
    second.finished.forget(3)
    assert files(tmp_path) == [run_directory.rollout_file(3)]


def test_rollouts_with_images_are_not_kept(tmp_path: Path) -> None:
    first = Attempt(tmp_path)
    first.take(0, images=Images(np.zeros((1, 4)), np.zeros((1, 4), np.int32)))
    first.finished.close()
    assert files(tmp_path) == []


def test_all_processes_take_what_the_leader_reads(tmp_path: Path) -> None:
    first = Attempt(tmp_path)
    first.take(0)
    first.take(1)
    first.finished.close()
    (tmp_path / run_directory.rollout_file(1)).write_text(json.dumps({"weights": "others"}))
    store = MessageStore()
    attempts = [Attempt(tmp_path, LeaderMessages(store, rank=rank), leader=rank == 0) for rank in range(2)]
    taken: dict[int, list[Rollout]] = {}

    def follow() -> None:
        taken[1] = [attempts[1].take(step) for step in range(3)]

    other = threading.Thread(target=follow)
    other.start()
    taken[0] = [attempts[0].take(step) for step in range(3)]
    other.join(60)
    assert [attempt.drawn for attempt in attempts] == [2, 2]
    assert all(np.array_equal(a.batch.mask_BT, b.batch.mask_BT) for a, b in zip(taken[0], taken[1], strict=True))
    attempts[0].finished.close()
    assert len(files(tmp_path)) == 3
