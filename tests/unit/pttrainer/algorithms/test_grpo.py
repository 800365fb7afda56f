"""GRPO around its loss: which tokens are trained, what is drawn when, what a checkpoint holds."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from tests.builders.trainer import specs

from ptapi import run_directory
from ptapi.spec import Evaluation as EvaluationSpec
from ptapi.spec import Rollout as RolloutSpec
from ptapi.spec.algorithm import DynamicSampling, Overlong, ReferenceSync, SamplerCorrection
from ptapi.spec.algorithm import Grpo as GrpoSpec
from pttrainer.algorithms.grpo import Grpo
from pttrainer.batch import Batch
from pttrainer.checkpoint import batch_json
from pttrainer.data.prompts import Order, Question
from pttrainer.data.tokenization.chat_template import Chat
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.rollout import groups
from pttrainer.rollout.context import Context
from pttrainer.rollout.engine import Sampling
from pttrainer.rollout.evaluation.evaluator import Evaluation
from pttrainer.rollout.groups import Group, Sample
from pttrainer.rollout.rollout_data import Rollout
from pttrainer.rollout.sampler import Sampler

EOS = 257
QUESTIONS = [Question([256, 10 + i, 99], f"q{i}", {"answer": str(i)}) for i in range(6)]


def sample(tokens: Sequence[int], reward: float, ended: bool = True) -> Sample:
    logps = -np.arange(1.0, len(tokens) + 1, dtype=np.float32)
    return Sample(list(tokens), logps, ended, "text", {"own": reward}, reward)


@dataclass
class FakeSampler:
    """Answers with rewards that a function of (call, prompt, sample) gives; remembers what it was asked."""

    reward: Any
    length: Any = lambda call, p, g: 2
    is_cut: Any = lambda p, g: False
    calls: list[list[int]] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)

    def sample(
        self,
        params: Any,
        questions: Sequence[Question],
        numbers: Sequence[int],
        samples: int,
        sampling: Sampling,
        draw: Any,
    ) -> Rollout:
        call = len(self.calls)
        self.calls.append(list(numbers))
        self.weights.append(params)
        made = [
            Group(
                q,
                [
                    sample([7] * (self.length(call, p, g) - 1) + [EOS], self.reward(call, p, g), not self.is_cut(p, g))
                    for g in range(samples)
                ],
            )
            for p, q in enumerate(questions)
        ]
        return Rollout(draw.step, made, {"seconds/generate": 1.0, "seconds/reward": 1.0})


class FakeContext:
    """What Grpo uses of a context; scores count as they are asked for."""

    deliver: Any = None
    finished: Any = None

    def __init__(self, grpo: GrpoSpec, rewards: Any = ({"builtin": "gsm8k"},), **training: Any) -> None:
        self.spec = specs.tiny({"grpo": grpo}, rewards=rewards, training=training)
        self.tokenizer = byte_tokenizer()
        self.chat = Chat(self.tokenizer, self.tokenizer.template)
        self.scored: list[Any] = []
        self.notes: list[str] = []
        self.saved: dict[int, list[dict[str, Any]]] = {}

    def scoring_parts(self, batch: Batch) -> int:
        return 1

    def score(self, params: Any, batch: Batch, temperature: float) -> TokenStats:
        self.scored.append(params)
        return TokenStats(np.float32(-0.5) * batch.mask_BT, np.zeros_like(batch.mask_BT))

    def initial_params(self) -> str:
        return "reference"

    def save_samples(self, step: int, rows: list[dict[str, Any]]) -> None:
        self.saved[step] = rows

    def note(self, text: str) -> None:
        self.notes.append(text)


def half_right(call: int, p: int, g: int) -> float:
    return float(g % 2)


def make(grpo: GrpoSpec, sampler: FakeSampler, **spec: Any) -> tuple[Grpo, FakeContext]:
    context = FakeContext(grpo, **spec)
    return Grpo(cast(Context, context), grpo, QUESTIONS, cast(Sampler, sampler), None), context


def test_a_row_trains_exactly_the_tokens_of_the_completion_with_its_end() -> None:
    group = Group(QUESTIONS[0], [sample([7, 8, EOS], 1.0), sample([EOS], 0.0)])
    batch = groups.lay_out([group], np.array([[0.5, -0.5]]), pad_id=258, length=64)
    assert batch.tokens_BT.shape == (2, 16)
    np.testing.assert_array_equal(batch.tokens_BT[0, :6], [256, 10, 99, 7, 8, 258])
    np.testing.assert_array_equal(batch.targets_BT[0, :6], [10, 99, 7, 8, EOS, 258])
    np.testing.assert_array_equal(batch.mask_BT[0, :6], [0, 0, 1, 1, 1, 0])
    np.testing.assert_array_equal(batch.mask_BT[1, :6], [0, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(batch.targets_BT[batch.mask_BT > 0], [7, 8, EOS, EOS])
    np.testing.assert_array_equal(batch.sampler_logps_BT[0, :6], [0, 0, -1, -2, -3, 0])
    np.testing.assert_array_equal(batch.advantages_BT[0, :6], [0, 0, 0.5, 0.5, 0.5, 0])
    np.testing.assert_array_equal(batch.segment_ids_BT[0, :6], [1, 1, 1, 1, 1, 0])
    np.testing.assert_array_equal(batch.positions_BT[0, :6], [0, 1, 2, 3, 4, 0])


def test_the_end_token_is_trained_also_where_padding_has_its_id() -> None:
    batch = groups.lay_out([Group(QUESTIONS[0], [sample([7, EOS], 1.0)])], np.array([[1.0]]), pad_id=EOS, length=64)
    assert batch.mask_BT.sum() == 2
    assert batch.targets_BT[0, 3] == EOS
    assert batch.mask_BT[0, 3] == 1


def test_every_prompt_comes_once_an_epoch_and_in_another_order_the_next() -> None:
    order = Order(50, seed=3)
    first, second = [order[i] for i in range(50)], [order[i] for i in range(50, 100)]
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert [Order(50, seed=3)[i] for i in range(50)] == first
    assert [Order(50, seed=4)[i] for i in range(50)] != first


def test_a_step_draws_the_next_prompts_and_weighs_all_sequences_alike() -> None:
    sampler = FakeSampler(half_right, length=lambda call, p, g: 2 + 2 * g)
    grpo, context = make(GrpoSpec(group_size=2), sampler)
    batch, facts = grpo.next_batch(0, {})
    grpo.next_batch(1, {})
    assert sampler.calls == [[0, 1], [2, 3]]
    np.testing.assert_allclose(batch.weight_BT.sum(axis=1), 0.25)
    assert facts["reward"] == 0.5
    assert facts["completion_length"] == 3.0
    assert facts["groups/all_right"] == facts["groups/all_wrong"] == 0.0
    assert [row["reward"] for row in context.saved[1]] == [0.0, 1.0, 0.0, 1.0]
    assert context.scored == []


def test_no_reference_is_loaded_without_beta_and_one_with_it() -> None:
    grpo, context = make(GrpoSpec(group_size=2), FakeSampler(half_right))
    batch, _ = grpo.next_batch(0, {})
    assert batch.ref_logps_BT is None
    stats = TokenStats(jnp.asarray(batch.mask_BT) * -0.5, jnp.zeros_like(batch.mask_BT))
    assert "kl" not in grpo.loss(stats, batch)[1]
    grpo, context = make(GrpoSpec(group_size=2, beta=0.1), FakeSampler(half_right))
    batch, _ = grpo.next_batch(0, {})
    assert context.scored == ["reference"]
    loss_BT, metrics = grpo.loss(stats, batch._replace(ref_logps_BT=batch.ref_logps_BT - 1.0 * batch.mask_BT))
    is_trained = batch.mask_BT > 0
    plain_BT, _ = grpo.loss(stats, batch)
    np.testing.assert_allclose(
        (loss_BT - plain_BT)[is_trained], 0.1 * 0.5 * metrics["sampler/weight"].values_BT[is_trained], 1e-5
    )
    np.testing.assert_allclose(metrics["kl"].values_BT[is_trained], np.exp(-1.0), rtol=1e-5)


def test_a_reference_that_follows_comes_with_the_weights_and_samples_nothing() -> None:
    sampler = FakeSampler(half_right)
    grpo, context = make(GrpoSpec(group_size=2, beta=0.1, reference_sync=ReferenceSync()), sampler)
    grpo.next_batch(0, {"layers": "first", "reference": "of step 0"})
    grpo.next_batch(1, {"layers": "second", "reference": "of step 1"})
    assert context.scored == ["of step 0", "of step 1"]
    assert sampler.weights == [{"layers": "first"}, {"layers": "second"}]


def test_a_sampler_that_differs_is_corrected_and_shown() -> None:
    grpo, _ = make(GrpoSpec(group_size=2), FakeSampler(half_right))
    batch, _ = grpo.next_batch(0, {})
    is_trained = batch.mask_BT > 0
    logps_BT = jnp.asarray(batch.sampler_logps_BT + np.log(1.5) * batch.mask_BT)
    same, _ = grpo.loss(TokenStats(jnp.asarray(batch.sampler_logps_BT), logps_BT * 0), batch)
    loss_BT, metrics = grpo.loss(TokenStats(logps_BT, logps_BT * 0), batch)
    np.testing.assert_allclose(loss_BT[is_trained], 1.5 * same[is_trained], rtol=1e-5)
    np.testing.assert_allclose(metrics["sampler/difference"].values_BT[is_trained], np.log(1.5), rtol=1e-5)
    np.testing.assert_allclose(metrics["sampler/weight"].values_BT[is_trained], 1.5, rtol=1e-5)


@pytest.mark.parametrize(("loss", "weight"), [("vespo", np.exp(3 + 4 * np.log(1.2) - 3 * 1.2**2)), ("dppo", 1.2)])
def test_losses_whose_ratio_is_to_the_sampler_are_corrected_once(loss: Any, weight: float) -> None:
    """Both tokens of a good sample are 1.2 times as likely as when they were sampled, by one update or by the sampler's
    arithmetic: vespo's weight is that of 1.44, dppo's 1.2, and neither is multiplied by a correction again."""
    grpo, _ = make(GrpoSpec(group_size=2, loss=loss, updates_per_batch=2), FakeSampler(half_right))
    batch, _ = grpo.next_batch(0, {})
    is_good = (batch.mask_BT > 0) & (batch.advantages_BT > 0)
    sampler_BT = jnp.asarray(np.log(0.5) * batch.mask_BT)
    logps_BT = sampler_BT + np.log(1.2) * batch.mask_BT
    for old_BT in (sampler_BT, logps_BT):
        known = batch._replace(sampler_logps_BT=sampler_BT, old_logps_BT=old_BT)
        loss_BT, metrics = grpo.loss(TokenStats(logps_BT, logps_BT * 0), known)
        wanted = -weight * batch.advantages_BT * logps_BT
        np.testing.assert_allclose(loss_BT[is_good], wanted[is_good], rtol=1e-5)
        np.testing.assert_allclose(metrics["ratio"].values_BT[is_good], 1.2, rtol=1e-5)


CORRECTION = SamplerCorrection(mode="sequence-mask", highest=1.2)


@pytest.mark.parametrize(
    ("spec", "by_token", "bad_are_kept"),
    [
        (GrpoSpec(group_size=2), True, True),
        (GrpoSpec(group_size=2, sampler_correction=SamplerCorrection(mode="token-mask", highest=1.2)), True, False),
        (GrpoSpec(group_size=2, sampler_correction=CORRECTION), False, False),
        (GrpoSpec(group_size=2, off_policy_threshold=0.1), False, False),
    ],
)
def test_samples_that_are_left_out_have_no_loss_and_are_counted(
    spec: GrpoSpec, by_token: bool, bad_are_kept: bool
) -> None:
    """Rewards are 0 and 1 in turns. The right answers' tokens are 1.04 times as likely as when sampled; of the wrong
    ones both tokens are 1.3 times as likely, or with a threshold 1.3 times less."""
    grpo, _ = make(spec, FakeSampler(half_right))
    batch, _ = grpo.next_batch(0, {})
    assert grpo.by_token == by_token
    is_trained, is_good = batch.mask_BT > 0, batch.advantages_BT > 0
    gap = np.log(1.3) * (1.0 if spec.off_policy_threshold is None else -1.0)
    logps_BT = jnp.asarray(batch.sampler_logps_BT + np.where(is_good, np.log(1.04), gap) * batch.mask_BT)
    loss_BT, metrics = grpo.loss(TokenStats(logps_BT, logps_BT * 0), batch)
    is_there = np.asarray(loss_BT) != 0
    assert is_there[is_trained & is_good].all()
    assert (is_there[is_trained & ~is_good] == bad_are_kept).all()
    assert ("sampler/masked" not in metrics) == bad_are_kept
    if not bad_are_kept:
        np.testing.assert_array_equal(metrics["sampler/masked"].values_BT[is_trained], ~is_good[is_trained])


@pytest.mark.parametrize("loss", ["grpo", "dapo"])
def test_truncated_samples_have_no_loss_and_no_place_in_its_mean_but_a_reward_in_their_group(loss: Any) -> None:
    cut = FakeSampler(half_right, is_cut=lambda p, g: p == 0 and g == 1)
    plain, _ = make(GrpoSpec(group_size=2, loss=loss), cut)[0].next_batch(0, {})
    batch, facts = make(GrpoSpec(group_size=2, loss=loss, mask_truncated=True), cut)[0].next_batch(0, {})
    is_left = np.array([True, False, True, True])
    np.testing.assert_array_equal(batch.mask_BT, plain.mask_BT * is_left[:, None])
    np.testing.assert_allclose(batch.weight_BT.sum(axis=1), is_left / 3, rtol=1e-6)
    np.testing.assert_array_equal(batch.advantages_BT, plain.advantages_BT)
    assert facts["truncated"] == 0.25


@pytest.mark.parametrize("kl", ["k2", "k3"])
@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize("loss", ["grpo", "vespo", "dppo"])
def test_the_kl_of_stale_samples_has_the_gradient_of_the_policy_s_own_kl(kl: Any, updates: int, loss: Any) -> None:
    """Every outcome of a policy of three is one row, weighted by how likely the sampler drew it: no noise is left."""
    theta, sampler = jnp.array([0.2, -0.5, 0.7]), jax.nn.log_softmax(jnp.array([0.5, -0.2, 0.1]))
    old, reference = jax.nn.log_softmax(jnp.array([0.3, -0.4, 0.5])), jax.nn.log_softmax(jnp.array([1.0, 0.1, -0.4]))
    spec = GrpoSpec(group_size=2, loss=loss, beta=1.0, kl=kl, updates_per_batch=updates)
    grpo, _ = make(spec, FakeSampler(half_right))
    batch, _ = grpo.next_batch(0, {})
    column = lambda logps: logps[:, None]  # noqa: E731
    batch = batch._replace(
        mask_BT=np.ones((3, 1), np.float32),
        advantages_BT=np.zeros((3, 1), np.float32),
        old_logps_BT=column(old) if updates > 1 else None,
        sampler_logps_BT=column(sampler),
        ref_logps_BT=column(reference),
    )

    def expected(t: Array) -> Array:
        logps_BT = column(jax.nn.log_softmax(t))
        loss_BT, _ = grpo.loss(TokenStats(logps_BT, jnp.zeros_like(logps_BT)), batch)
        return jnp.sum(column(jnp.exp(sampler)) * loss_BT)

    exact = jax.grad(lambda t: jnp.sum(jax.nn.softmax(t) * (jax.nn.log_softmax(t) - reference)))(theta)
    assert np.linalg.norm(exact) > 0.1
    np.testing.assert_allclose(jax.grad(expected)(theta), exact, atol=1e-6)


def test_several_updates_use_one_rollout_and_the_log_probs_from_before_the_first() -> None:
    sampler = FakeSampler(half_right)
    grpo, context = make(GrpoSpec(group_size=2, updates_per_batch=2), sampler)
    first, facts = grpo.next_batch(0, "before")
    second, again = grpo.next_batch(1, "after")
    assert first is second
    assert again == {name: value for name, value in facts.items() if not run_directory.is_of_machine(name)}
    assert "reward" in again
    assert {"seconds/generate", "sampled_tokens_per_second"} <= set(facts) - set(again)
    assert context.scored == ["before"]
    np.testing.assert_array_equal(first.old_logps_BT, -0.5 * first.mask_BT)
    assert len(sampler.calls) == 1
    grpo.next_batch(2, "after")
    assert len(sampler.calls) == 2


def test_a_run_resumed_within_its_updates_trains_on_the_same_bits() -> None:
    spec = GrpoSpec(group_size=2, updates_per_batch=2)
    grpo, _ = make(spec, FakeSampler(half_right))
    grpo.next_batch(0, {})
    state = json.loads(json.dumps(grpo.state()))
    batch, facts = grpo.next_batch(1, {})
    sampler = FakeSampler(half_right)
    resumed, _ = make(spec, sampler)
    resumed.restore(state)
    again, same_facts = resumed.next_batch(1, {})
    assert same_facts == facts
    for name, before in batch._asdict().items():
        after = getattr(again, name)
        assert (before is None) == (after is None)
        if before is not None:
            assert after.dtype == before.dtype
            np.testing.assert_array_equal(after, before)
    resumed.next_batch(2, {})
    assert sampler.calls == [[2, 3]]


def test_a_checkpoint_of_before_batches_were_drawn_ahead_goes_on() -> None:
    spec = GrpoSpec(group_size=2, updates_per_batch=2)
    grpo, _ = make(spec, FakeSampler(half_right))
    batch, _ = grpo.next_batch(0, {})
    state = json.loads(json.dumps(grpo.state()))
    del state["ahead"]
    resumed, _ = make(spec, sampler := FakeSampler(half_right))
    resumed.restore(state)
    np.testing.assert_array_equal(resumed.next_batch(1, {})[0].weight_BT, batch.weight_BT)
    resumed.next_batch(2, {})
    assert sampler.calls == [[2, 3]]


def test_saved_arrays_keep_every_bit() -> None:
    odd = np.array([[np.nan, -0.0, 1e-45, np.inf]], np.float32)
    batch = Batch(odd, odd, odd, odd, odd, odd)
    back = batch_json.from_json(json.loads(json.dumps(batch_json.to_json(batch))))
    assert back.tokens_BT.tobytes() == odd.tobytes()
    assert back.ref_logps_BT is None


def test_the_old_policy_of_stale_samples_is_that_of_their_first_update() -> None:
    grpo_spec, sampler = GrpoSpec(group_size=2, updates_per_batch=2), FakeSampler(half_right)
    context = FakeContext(grpo_spec)
    rollout = RolloutSpec(max_new_tokens=8, placement="disaggregated", max_staleness=2)
    context.spec = context.spec.model_copy(update={"rollout": rollout})
    context.deliver = lambda params: params
    grpo = Grpo(cast(Context, context), grpo_spec, QUESTIONS, cast(Sampler, sampler), None)
    batches = [grpo.next_batch(step, f"after {step}") for step in range(6)]
    assert [facts["staleness"] for _, facts in batches] == [0, 0, 2, 2, 2, 2]
    assert context.scored == ["after 0", "after 2", "after 4"]
    assert grpo.state()["drawn"] == 8  # one batch of two prompts ahead
    assert context.saved[3][0]["version"] == 0


def test_dynamic_sampling_replaces_groups_without_spread_and_gives_up_in_the_end() -> None:
    sampler = FakeSampler(lambda call, p, g: float(g % 2) if (call, p) == (1, 1) else 1.0)
    grpo, context = make(GrpoSpec(group_size=2, dynamic_sampling=DynamicSampling(max_tries=3)), sampler)
    _, facts = grpo.next_batch(0, {})
    assert facts["groups/replaced"] == 1.0
    assert facts["groups/all_right"] == 0.5
    assert sampler.calls == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert grpo.state()["drawn"] == 8
    assert {row["prompt"] for row in context.saved[1]} >= {QUESTIONS[Order(6, 0)[3]].text}


def test_dynamic_sampling_ends_with_a_draw_that_has_no_reward_and_its_fault_survives_a_restart() -> None:
    """Rewards that fail take up to their limit, each: they are not asked once more for every try."""
    sampler = FakeSampler(lambda call, p, g: float("nan"))
    grpo, _ = make(GrpoSpec(group_size=2, dynamic_sampling=DynamicSampling(max_tries=40)), sampler)
    grpo.next_batch(0, {})
    assert len(sampler.calls) == 1
    fault = grpo.fault
    assert fault.message == "reward own: 4 of 4 samples have no reward"
    resumed, _ = make(GrpoSpec(group_size=2), sampler)
    resumed.restore(json.loads(json.dumps(grpo.state())))
    assert resumed.fault == fault


def test_a_step_that_goes_on_drawing_in_vain_says_so_at_every_doubling() -> None:
    sampler = FakeSampler(lambda call, p, g: 1.0)
    grpo, context = make(GrpoSpec(group_size=2, dynamic_sampling=DynamicSampling(max_tries=40)), sampler)
    grpo.next_batch(0, {})
    assert len(sampler.calls) == 41
    assert [note.split(",")[0] for note in context.notes] == [
        f"step 1: {tries} tries of dynamic sampling" for tries in (8, 16, 32)
    ]
    assert "2 of 2 groups still have equal rewards; hint: " in context.notes[0]


def test_the_overlong_penalty_counts_tokens_and_ends_at_minus_one() -> None:
    """Limit 8, buffer 4: nothing up to 4 tokens, −1/4 a token after that."""
    sampler = FakeSampler(lambda call, p, g: 1.0, length=lambda call, p, g: [3, 5, 8, 8][2 * p + g])
    grpo, context = make(GrpoSpec(group_size=2, overlong=Overlong(buffer_tokens=4)), sampler)
    grpo.next_batch(0, {})
    assert [row["reward"] for row in context.saved[1]] == [1.0, 0.75, 0.0, 0.0]


def test_z_scored_rewards_are_compared_and_the_plain_sum_is_shown() -> None:
    """Of two rewards that disagree, the one that is a thousand times the other decides a sum and no z-scores."""

    class TwoRewards(FakeSampler):
        def sample(self, *arguments: Any) -> Rollout:
            scored = super().sample(*arguments)
            parts = [{"right": float(g % 2), "short": 1000.0 * (g == 0)} for g in range(3)]
            of_parts = zip(scored.groups[0].samples, parts, strict=True)
            made = [one._replace(rewards=p, reward=sum(p.values())) for one, p in of_parts]
            return replace(scored, groups=[scored.groups[0]._replace(samples=made)])

    sampler = TwoRewards(half_right, length=lambda call, p, g: 8 if g == 2 else 2)
    rewards = [{"builtin": "gsm8k", "name": "right"}, {"builtin": "format", "name": "short", "weight": 0.5}]
    options = {"combine_rewards": "z-scores", "advantage": "centered", "overlong": Overlong(buffer_tokens=4)}
    grpo, context = make(GrpoSpec.model_validate({"group_size": 3, **options}), sampler, rewards=rewards, batch_size=3)
    batch, facts = grpo.next_batch(0, {})
    z = np.array([-1.0, 2.0, -1.0]) / np.sqrt(3.0) + 0.5 * np.array([2.0, -1.0, -1.0]) / np.sqrt(3.0)
    compared = z + np.array([0.0, 0.0, -1.0])  # the last is too long
    first = [batch.advantages_BT[row][batch.mask_BT[row] > 0][0] for row in range(3)]
    np.testing.assert_allclose(first, compared - compared.mean(), atol=2e-4)
    assert facts["reward"] == pytest.approx((1000 + 1 - 1) / 3)
    assert [row["reward"] for row in context.saved[1]] == [1000.0, 1.0, -1.0]


def test_a_sample_without_reward_is_left_out_and_shown_as_null() -> None:
    sampler = FakeSampler(lambda call, p, g: [0.0, 1.0, float("nan"), 1.0][g])
    grpo, context = make(GrpoSpec(group_size=4), sampler)
    batch, facts = grpo.next_batch(0, {})
    assert facts["reward"] == pytest.approx(2 / 3)
    assert facts["reward/missing"] == 0.25
    assert context.saved[1][2]["reward"] is None
    assert not np.any(batch.advantages_BT[2])
    assert json.loads(json.dumps(facts)) == facts


@pytest.mark.parametrize(
    "loss", ["grpo", "dr-grpo", "dapo", "gspo", "gspo-token", "luspo", "cispo", "vespo", "dppo", "rloo"]
)
def test_every_loss_reduces_with_its_own_weights(loss: Any) -> None:
    sampler = FakeSampler(half_right, length=lambda call, p, g: 2 + 2 * g)
    grpo, _ = make(GrpoSpec(group_size=2, loss=loss), sampler)
    batch, _ = grpo.next_batch(0, {})
    row = batch.weight_BT.sum(axis=1)
    wanted = {
        "dr-grpo": np.array([2, 4, 2, 4]) / (4 * 8),
        "dapo": np.array([2, 4, 2, 4]) / 12,
        "luspo": np.array([2, 4, 2, 4]) / 4,
        **dict.fromkeys(("cispo", "vespo", "dppo", "rloo"), np.array([2, 4, 2, 4]) / 12),
    }.get(loss, np.full(4, 0.25))
    np.testing.assert_allclose(row, wanted, rtol=1e-6)


def test_evaluation_counts_every_row_once_although_its_last_batch_is_filled_up() -> None:
    sampler = FakeSampler(lambda call, p, g: 1.0 if call == 0 else 0.0)
    evaluation = Evaluation(
        cast(Sampler, sampler), QUESTIONS, Sampling(8, 64, greedy=True), EvaluationSpec(batch_size=4)
    )
    facts = evaluation.run({})
    assert [len(numbers) for numbers in sampler.calls] == [4, 4]
    assert facts["eval/reward"] == pytest.approx(4 / 6)
    assert facts["eval/completion_length"] == 2.0


def test_steps_follow_from_epochs() -> None:
    grpo, _ = make(GrpoSpec(group_size=2, updates_per_batch=2), FakeSampler(half_right), steps=None, epochs=2.0)
    assert grpo.total_steps == 6 * 2  # 6 prompts, 2 a rollout, 2 epochs, 2 updates each
