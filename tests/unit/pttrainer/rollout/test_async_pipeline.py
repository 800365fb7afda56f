"""Sampling ahead: which weights draw which batch, when nothing may be drawn, what a checkpoint holds."""

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from pttrainer.batch import Batch
from pttrainer.rollout.disaggregated.async_pipeline import Pipeline
from pttrainer.rollout.rollout_data import Rollout


def laid_out(number: int, facts: Mapping[str, float] | None = None, **parts: Any) -> Rollout:
    """Rows that hold the number."""
    whole = np.full((2, 3), number, np.int32)
    batch = Batch(whole, whole, whole, whole, whole.astype(np.float32) / 3, whole.astype(np.float32))
    return Rollout(0, [], facts or {}, rows=batch, **parts)


class Sampling:
    """Draws batches that say which weights and which step they are of; remembers who asked for what."""

    def __init__(self, bound: int, total: int = 8, every: int = 1, fails_at: int = -1) -> None:
        self.delivered: list[int] = []
        self.threads: set[int] = set()
        self.drawn = 0
        self.fails_at = fails_at
        self.pipeline = Pipeline(bound, total, lambda step: step % every == 0, self.deliver, self.draw)

    def deliver(self, params: Any) -> Any:
        self.delivered.append(params)
        return {"of": params}

    def draw(self, step: int, weights: Any) -> Rollout:
        self.threads.add(threading.get_ident())
        self.drawn += 1
        if step == self.fails_at:
            raise ValueError("no sample")
        return laid_out(
            1000 * weights.params["of"] + step, {"reward": self.drawn / 3}, table=[{"prompt": f"p{self.drawn}"}]
        )

    def run(self, first: int, last: int, every: int = 1) -> list[Rollout]:
        """Steps first … last − 1; the weights of a step are its number."""
        return [self.pipeline.next(step, step) for step in range(first, last, every)]


def versions(drawn: list[Rollout]) -> list[int]:
    return [int(one.batch.tokens_BT[0, 0]) // 1000 for one in drawn]


def steps(drawn: list[Rollout]) -> list[int]:
    return [int(one.batch.tokens_BT[0, 0]) % 1000 for one in drawn]


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_the_batch_of_a_step_comes_from_the_weights_of_bound_steps_before(bound: int) -> None:
    drawn = Sampling(bound).run(0, 8)
    assert steps(drawn) == list(range(8))
    assert versions(drawn) == [max(0, step - bound) for step in range(8)]
    assert [one.facts["staleness"] for one in drawn] == [min(step, bound) for step in range(8)]
    assert [one.table[0]["version"] for one in drawn] == versions(drawn)


def test_with_several_updates_a_batch_the_bound_still_counts_optimizer_steps() -> None:
    sampling = Sampling(bound=4, total=12, every=2)
    drawn = sampling.run(0, 12, every=2)
    assert steps(drawn) == [0, 2, 4, 6, 8, 10]
    assert versions(drawn) == [0, 0, 0, 2, 4, 6]
    assert sampling.delivered == [0, 2, 4, 6]  # once for the first three, and never for a batch after the end


def test_weights_move_once_for_all_batches_that_they_draw_and_not_for_none() -> None:
    sampling = Sampling(bound=2, total=4)
    sampling.run(0, 4)
    assert sampling.delivered == [0, 1]
    assert sampling.drawn == 4


def test_batches_are_drawn_in_their_order_by_one_thread_that_is_not_the_trainer_s() -> None:
    ahead, at_once = Sampling(bound=3), Sampling(bound=0)
    assert [one.facts["reward"] for one in ahead.run(0, 8)] == [n / 3 for n in range(1, 9)]
    at_once.run(0, 8)
    assert len(ahead.threads) == 1
    assert threading.get_ident() not in ahead.threads
    assert at_once.threads == {threading.get_ident()}


def test_sampling_goes_on_while_the_trainer_trains() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def draw(step: int, weights: Any) -> Rollout:
        if step == 1:
            begun.set()
            assert may_end.wait(60)
        return laid_out(step)

    pipeline = Pipeline(1, 3, lambda step: True, lambda params: params, draw)
    pipeline.next(0, 0)
    assert begun.wait(60)  # of step 1, although step 0 has not been trained
    may_end.set()
    assert pipeline.next(1, 1).facts["staleness"] == 1


def test_a_run_that_comes_back_trains_on_the_batches_it_had_and_goes_on_as_if_nothing_had_been() -> None:
    whole = Sampling(bound=2).run(0, 8)
    before = Sampling(bound=2)
    before.run(0, 3)
    state = json.loads(json.dumps(before.pipeline.state()))
    after = Sampling(bound=2)
    after.drawn = before.drawn
    after.pipeline.restore(state)
    again = after.run(3, 8)
    assert versions(again) == versions(whole[3:])
    for one, other in zip(again, whole[3:], strict=True):
        np.testing.assert_array_equal(one.batch.mask_BT, other.batch.mask_BT, strict=True)
        assert (one.facts["reward"], one.table) == (other.facts["reward"], other.table)
    assert after.delivered == [3, 4, 5]


def test_rewards_of_samples_that_were_drawn_ahead_are_kept_to_the_bit() -> None:
    rewards, ended = np.array([0.1, np.nan]), np.array([True, False])

    def draw(step: int, weights: Any) -> Rollout:
        return laid_out(step, rewards_N=rewards, ended_N=ended)

    def pipeline() -> Pipeline:
        return Pipeline(1, 3, lambda step: True, lambda params: params, draw)

    before, after = pipeline(), pipeline()
    before.next(0, 0)
    after.restore(json.loads(json.dumps(before.state())))
    again = after.next(1, 1)
    assert again.rewards_N.tobytes() == rewards.tobytes()
    assert again.ended_N.tolist() == [True, False]


def test_an_evaluation_gets_its_weights_when_nothing_is_being_drawn() -> None:
    sampling = Sampling(bound=3)
    sampling.pipeline.next(0, 0)
    assert sampling.pipeline.when_idle(7) == {"of": 7}
    assert sampling.drawn == 4


def test_samples_that_are_too_old_for_a_smaller_bound_are_dropped_counted_and_drawn_again() -> None:
    before = Sampling(bound=3)
    before.run(0, 3)  # drawn ahead: steps 3, 4, 5 with the weights of 0, 1, 2
    after = Sampling(bound=2)
    after.pipeline.restore(before.pipeline.state())
    drawn = after.run(3, 6)
    assert versions(drawn) == [3, 3, 3]
    assert [one.facts["staleness/dropped"] for one in drawn] == [6, 0, 0]
    kept = Sampling(bound=4)
    kept.pipeline.restore(before.pipeline.state())
    assert versions(kept.run(3, 7)) == [0, 1, 2, 3]


def test_a_draw_that_fails_ends_the_run_where_its_batch_is_asked_for() -> None:
    sampling = Sampling(bound=1, fails_at=2)
    sampling.run(0, 2)
    with pytest.raises(ValueError, match="no sample"):
        sampling.pipeline.next(2, 2)


def test_where_the_same_chips_sample_nothing_is_delivered_and_no_figure_added() -> None:
    def draw(step: int, weights: Any) -> Rollout:
        return laid_out(weights.params, {"reward": 1.0}, table=[{"prompt": "p"}])

    nowhere: Callable[[Any], Any] | None = None
    drawn = Pipeline(0, 3, lambda step: True, nowhere, draw).next(1, 7)
    assert (int(drawn.batch.tokens_BT[0, 0]), drawn.facts, drawn.table) == (7, {"reward": 1.0}, [{"prompt": "p"}])
