"""SDPO around its loss: who learns from whom, what the teacher reads, what a resumed run trains on."""

import json
from dataclasses import replace
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pytest
from tests.builders.trainer import specs
from tests.unit.pttrainer.algorithms.test_grpo import EOS, FakeContext, FakeSampler

from ptapi.spec import Sdpo as SdpoSpec
from pttrainer.algorithms import grpo
from pttrainer.algorithms.distillation import sdpo
from pttrainer.algorithms.distillation.sdpo import Sdpo, solutions
from pttrainer.batch import Batch
from pttrainer.data import loss_weights
from pttrainer.data.prompts import Question
from pttrainer.errors import DataError
from pttrainer.losses import policy_gradient
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.losses.divergence import DistillationStats
from pttrainer.models import Model, preset
from pttrainer.preflight.shapes.job_shapes import batch_arrays
from pttrainer.rollout.context import Context
from pttrainer.rollout.rollout_data import Rollout
from pttrainer.rollout.sampler import Sampler
from pttrainer.train_step.objective import HasTeacher

MODEL = Model(preset("tiny"))
CHAT = FakeContext(cast(Any, {})).chat
QUESTIONS = [
    Question(CHAT.prompt_ids([message]), message["content"], {"hint": f"h{i}"}, messages=[message])
    for i, message in enumerate({"role": "user", "content": f"q{i}"} for i in range(5))
]


class Speaking(FakeSampler):
    """The samples of `FakeSampler`, each with a text of its own."""

    def sample(self, *arguments: Any) -> Rollout:
        rollout = super().sample(*arguments)
        texts = [
            group._replace(samples=[one._replace(text=f"<think>t</think>s{g}") for g, one in enumerate(group.samples)])
            for group in rollout.groups
        ]
        return replace(rollout, groups=texts)


def make(sampler: FakeSampler, **fields: Any) -> tuple[Sdpo, FakeContext]:
    spec = SdpoSpec(group_size=2, **fields)
    context = FakeContext(cast(Any, {}))
    context.spec = specs.tiny({"sdpo": spec})
    teacher = sdpo.teacher_of(spec, MODEL), {}
    return Sdpo(cast(Context, context), spec, teacher, QUESTIONS, cast(Sampler, sampler), None), context


def second_is_right(call: int, p: int, g: int) -> float:
    """Of the first prompt nothing is right."""
    return float(g == 1 and p > 0)


def read(batch: Any, row: int) -> str:
    """What the teacher reads before and with a sample."""
    ids = batch.teacher_tokens_BU[row][batch.teacher_segment_ids_BU[row] > 0]
    return str(CHAT.tokenizer.decode(ids.tolist(), skip_special=False))


@pytest.mark.parametrize(
    ("own", "wanted"), [(False, [[1, -1, 1], [2, 0, 0], [-1, -1, -1]]), (True, [[1, 1, 1], [0, 0, 0], [-1, -1, -1]])]
)
def test_a_sample_learns_from_the_first_good_one_of_its_prompt_and_not_from_itself(
    own: bool, wanted: list[list[int]]
) -> None:
    rewards_PG = np.array([[0.2, 1.0, 0.0], [1.0, np.nan, 2.0], [0.9, 0.1, np.nan]])
    np.testing.assert_array_equal(solutions(rewards_PG, 1.0, own=own), wanted)


def test_the_teacher_reads_the_good_sample_before_the_same_completion_and_others_learn_nothing() -> None:
    made, context = make(Speaking(second_is_right))
    batch, facts = made.next_batch(0, cast(Any, {}))
    np.testing.assert_array_equal(batch.mask_BT.sum(axis=1) > 0, [False, False, True, False])
    assert "This is a correct solution:\n\n<think>t</think>s1" in read(batch, 2)
    assert "correct solution" not in read(batch, 3)
    trained = batch.mask_BT[2] > 0
    slots = batch.teacher_slots_BT[2][trained]
    np.testing.assert_array_equal(batch.teacher_tokens_BU[2][slots][1:], batch.targets_BT[2][trained][:-1])
    assert batch.targets_BT[2][trained][-1] == EOS
    np.testing.assert_allclose(batch.weight_BT[2][trained], 1 / trained.sum())
    assert (facts["samples/taught"], facts["samples/with_solution"], facts["groups/solved"]) == (0.25, 0.25, 0.5)
    assert [row["advantage"] for row in context.saved[1]] == [0.0, 0.0, 1.0, 0.0]


def test_feedback_stands_in_where_no_other_sample_is_good_and_thinking_is_dropped() -> None:
    made, _ = make(Speaking(second_is_right), feedback_context="{prompt} Mind {hint}.", drop_thinking=True)
    batch, facts = made.next_batch(0, cast(Any, {}))
    assert (batch.mask_BT.sum(axis=1) > 0).all()
    assert "correct solution:\n\ns1" in read(batch, 2)
    for row in (0, 1, 3):
        assert "Mind h" in read(batch, row)
        assert "correct solution" not in read(batch, row)
    assert (facts["samples/taught"], facts["samples/with_solution"]) == (1.0, 0.25)


def test_a_column_that_the_row_lacks_is_named_with_its_field() -> None:
    with pytest.raises(DataError, match=r"spec.algorithm.sdpo.feedbackContext: \{advice\}: no such column"):
        sdpo.teacher_messages(SdpoSpec(feedback_context="{prompt} {advice}"), QUESTIONS[0], "", has_solution=False)


def test_a_step_without_a_good_sample_has_no_weight() -> None:
    made, _ = make(Speaking(lambda call, p, g: 0.0))
    batch, facts = made.next_batch(0, cast(Any, {}))
    assert not batch.weight_BT.any()
    assert facts["groups/solved"] == 0.0


@pytest.mark.parametrize("loss", ["grpo", "dapo", "gspo"])
def test_all_samples_have_a_policy_loss_and_those_with_a_solution_a_divergence_beside_it(loss: str) -> None:
    made, _ = make(Speaking(second_is_right), distillation_weight=0.25, policy={"loss": loss})
    plain, _ = make(Speaking(second_is_right))
    batch, facts = made.next_batch(0, cast(Any, {}))
    alone, _ = plain.next_batch(0, cast(Any, {}))
    assert (batch.mask_BT.sum(axis=1) > 0).all()
    assert facts["samples/taught"] == 0.25
    for name in ("teacher_tokens_BU", "teacher_slots_BT"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(alone, name))
    weights = policy_gradient.VARIANTS[loss].weights(batch.mask_BT, 8)
    np.testing.assert_array_equal(batch.weight_BT, weights)
    np.testing.assert_allclose(batch.weight_BT * batch.divergence_share_BT, 0.25 * alone.weight_BT, rtol=1e-6)
    of_first, of_second = batch.advantages_BT[:2], batch.advantages_BT[2:]
    assert not of_first.any()
    np.testing.assert_allclose(sorted(set(of_second.ravel().tolist())), [-0.70701, 0.0, 0.70701], atol=1e-4)


def arrays(*shape: int) -> list[Any]:
    return list(np.random.default_rng(3).normal(0, 0.3, (5, *shape)).astype(np.float32))


def losses(weight: float) -> tuple[Any, Any, Any, dict[str, Any]]:
    """The loss with this weight, with the policy loss and with the divergence alone, per token, and its metrics."""
    logps_BT, old_BT, divergence_BT, advantages_BT, share_BT = arrays(4, 6)
    ones_BT = np.ones((4, 6), np.float32)
    batch = Batch(*[ones_BT.astype(np.int32)] * 4, ones_BT, ones_BT, advantages_BT, old_BT, old_BT)
    stats = DistillationStats(jnp.asarray(logps_BT), jnp.asarray(ones_BT), jnp.asarray(divergence_BT))
    spec = specs.tiny({"sdpo": SdpoSpec(distillation_weight=weight)})
    assert spec.algorithm.sdpo is not None
    loss = sdpo.Loss(spec, sdpo.teacher_of(spec.algorithm.sdpo, MODEL), {})
    alone = sdpo.Loss(specs.tiny({"sdpo": SdpoSpec()}), loss.teacher, {}) if weight else None
    shared = batch._replace(divergence_share_BT=jnp.maximum(share_BT, 0.0) if 0 < weight < 1 else None)
    loss_BT, metrics = loss.loss(stats, shared)
    policy_BT, _ = grpo.Loss(specs.tiny({"grpo": {}})).loss(TokenStats(stats.logps_BT, stats.entropy_BT), batch)
    return loss_BT, policy_BT, None if alone is None else alone.loss(stats, batch)[0], metrics


def test_the_ends_are_the_policy_loss_and_the_divergence_to_the_bit() -> None:
    loss_BT, policy_BT, _, metrics = losses(0.0)
    np.testing.assert_array_equal(loss_BT, policy_BT)
    assert "divergence" not in metrics
    loss_BT, policy_BT, alone_BT, _ = losses(1.0)
    np.testing.assert_array_equal(loss_BT, alone_BT)
    assert np.abs(loss_BT - policy_BT).max() > 0.01


def test_between_them_a_token_has_its_share_of_each_and_the_divergence_is_of_those_that_learn() -> None:
    loss_BT, policy_BT, alone_BT, metrics = losses(0.25)
    share_BT = np.maximum(arrays(4, 6)[4], 0.0)
    np.testing.assert_allclose(loss_BT, 0.75 * policy_BT + share_BT * alone_BT, rtol=1e-6)
    divergence = loss_weights.partial(metrics["divergence"], jnp.ones((4, 6)))
    np.testing.assert_allclose(divergence.value / divergence.count, arrays(4, 6)[2][share_BT > 0].mean(), rtol=1e-5)


def test_without_a_divergence_nobody_teaches() -> None:
    made, context = make(Speaking(second_is_right), distillation_weight=0.0)
    batch, _ = made.next_batch(0, cast(Any, {}))
    assert not isinstance(made, HasTeacher)
    assert isinstance(make(Speaking(second_is_right), distillation_weight=0.5)[0], HasTeacher)
    assert {name for name, array in batch._asdict().items() if array is not None} == set(batch_arrays(context.spec))
    assert batch.teacher_tokens_BU is None


@pytest.mark.parametrize(("highest", "wanted"), [(2.0, [2.0, 0.5, 1.0]), (None, [1.0, 1.0, 1.0])])
def test_a_token_weighs_as_much_more_as_it_is_likelier_than_before_up_to_the_bound(
    highest: float | None, wanted: list[float]
) -> None:
    made, _ = make(Speaking(second_is_right), highest_ratio=highest, updates_per_batch=2)
    batch, _ = made.next_batch(0, cast(Any, {}))
    batch = batch._replace(old_logps_BT=jnp.log(jnp.array([[0.1, 0.4, 0.3]])), sampler_logps_BT=jnp.zeros((1, 3)))
    stats = DistillationStats(jnp.log(jnp.array([[0.9, 0.2, 0.3]])), jnp.ones((1, 3)), jnp.array([[1.0, 1.0, 1.0]]))
    np.testing.assert_allclose(made.loss(stats, batch)[0][0], wanted, rtol=1e-6)


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_a_run_resumed_within_its_updates_trains_on_the_same_samples(weight: float) -> None:
    made, context = make(Speaking(second_is_right), updates_per_batch=2, distillation_weight=weight)
    batch, _ = made.next_batch(0, cast(Any, {}))
    assert len(context.scored) == 1
    assert {name for name, array in batch._asdict().items() if array is not None} == set(batch_arrays(context.spec))
    state = json.loads(json.dumps(made.state()))
    sampler = Speaking(second_is_right)
    resumed, _ = make(sampler, updates_per_batch=2, distillation_weight=weight)
    resumed.restore(state)
    again, _ = resumed.next_batch(1, cast(Any, {}))
    names = ["tokens_BT", "weight_BT", "old_logps_BT", "teacher_tokens_BU", "teacher_slots_BT", "advantages_BT"]
    for name in names if weight == 1 else [*names, "divergence_share_BT"]:
        np.testing.assert_array_equal(getattr(again, name), getattr(batch, name))
    resumed.next_batch(2, cast(Any, {}))
    assert sampler.calls == [[2, 3]]
