"""RAFT around its loss: which samples are kept, what they weigh, what a resumed run trains on."""

import json
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pytest
from tests.builders.trainer import specs
from tests.unit.pttrainer.algorithms.test_grpo import QUESTIONS, FakeContext, FakeSampler

from ptapi.spec import Raft as RaftSpec
from ptapi.spec import Rollout
from pttrainer.algorithms.raft import Raft, kept
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.rollout.context import Context
from pttrainer.rollout.sampler import Sampler


def make(raft: RaftSpec, sampler: FakeSampler, **parts: Any) -> tuple[Raft, FakeContext]:
    context = FakeContext(cast(Any, {}))
    context.spec = specs.tiny({"raft": raft}, **parts)
    return Raft(cast(Context, context), raft, QUESTIONS, cast(Sampler, sampler), None), context


@pytest.mark.parametrize(
    ("least", "best", "wanted"),
    [
        (1.0, None, [[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]]),
        (1.0, 2, [[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 0, 0]]),
        (0.5, 1, [[0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0]]),
        (-1e9, 1, [[0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0]]),
    ],
)
def test_good_samples_are_kept_the_best_first_and_none_without_a_reward(
    least: float, best: int | None, wanted: list[list[int]]
) -> None:
    rewards_PG = np.array([[1.0, 0.5, 2.0, np.nan], [0.2, 0.9, 0.1, 0.8], [1.0, 1.0, 1.0, 1.0]])
    np.testing.assert_array_equal(kept(rewards_PG, least, best), wanted)


def test_kept_tokens_weigh_alike_and_others_nothing() -> None:
    """Completions of 2 and 4 tokens in turns; the longer ones are right, of the second prompt both."""
    sampler = FakeSampler(lambda call, p, g: float(g or p), length=lambda call, p, g: 2 + 2 * g)
    raft, context = make(RaftSpec(samples_per_prompt=2), sampler)
    batch, facts = raft.next_batch(0, {})
    np.testing.assert_allclose(batch.weight_BT.sum(axis=1), np.array([0, 4, 2, 4]) / 10)
    np.testing.assert_array_equal(batch.weight_BT > 0, batch.mask_BT > 0)
    assert (facts["samples/kept"], facts["groups/kept"], facts["reward"]) == (0.75, 1.0, 0.75)
    assert [row["advantage"] for row in context.saved[1]] == [0.0, 1.0, 1.0, 1.0]


def test_a_step_that_keeps_nothing_has_no_weight() -> None:
    raft, _ = make(RaftSpec(samples_per_prompt=2), FakeSampler(lambda call, p, g: 0.0))
    batch, facts = raft.next_batch(0, {})
    assert not batch.weight_BT.any()
    assert facts["groups/kept"] == 0.0


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_loss_is_the_negative_log_likelihood_whoever_sampled(temperature: float) -> None:
    rollout = Rollout(max_new_tokens=8, temperature=temperature)
    raft, _ = make(RaftSpec(samples_per_prompt=2), FakeSampler(lambda call, p, g: 1.0), rollout=rollout)
    batch, _ = raft.next_batch(0, {})
    logps_BT = jnp.asarray(batch.sampler_logps_BT - batch.mask_BT)
    loss_BT, metrics = raft.loss(TokenStats(logps_BT, logps_BT * 0), batch)
    np.testing.assert_array_equal(loss_BT, -logps_BT)
    assert ("sampler/kl" in metrics) == (temperature == 1.0)


def test_a_run_resumed_within_its_updates_trains_on_the_same_samples() -> None:
    raft, _ = make(RaftSpec(samples_per_prompt=2, updates_per_batch=2), FakeSampler(lambda call, p, g: float(g)))
    batch, _ = raft.next_batch(0, {})
    assert batch.old_logps_BT is None
    state = json.loads(json.dumps(raft.state()))
    sampler = FakeSampler(lambda call, p, g: float(g))
    resumed, _ = make(RaftSpec(samples_per_prompt=2, updates_per_batch=2), sampler)
    resumed.restore(state)
    again, _ = resumed.next_batch(1, {})
    np.testing.assert_array_equal(again.tokens_BT, batch.tokens_BT)
    np.testing.assert_array_equal(again.weight_BT, batch.weight_BT)
    resumed.next_batch(2, {})
    assert sampler.calls == [[2, 3]]


def test_the_expected_batch_has_the_shapes_of_the_next_one() -> None:
    sampler = FakeSampler(lambda call, p, g: float(g), length=lambda call, p, g: 8)
    raft, _ = make(RaftSpec(samples_per_prompt=2, updates_per_batch=2), sampler)
    expected = raft.expected_batch()
    batch, _ = raft.next_batch(0, {})
    assert expected is not None
    for name, array in batch._asdict().items():
        assert (array is None) == (getattr(expected, name) is None), name
        assert array is None or array.shape == getattr(expected, name).shape, name
