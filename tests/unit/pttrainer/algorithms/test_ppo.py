"""PPO: its losses by hand and as TRL has them, what a rollout becomes, and the step that trains policy and critic."""

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.builders.peers.ppo_losses import ours
from tests.builders.trainer import specs
from tests.builders.trainer.steps import single

from ptapi import run_directory
from ptapi.spec import Optimizer, PostTrainJobSpec, Schedule
from ptapi.spec import Ppo as PpoSpec
from ptapi.spec import Rollout as RolloutSpec
from pttrainer.algorithms import ppo
from pttrainer.algorithms.ppo import Ppo, RolloutValues, with_returns
from pttrainer.batch import Batch
from pttrainer.checkpoint.model_export import ExportWriter, export_critic
from pttrainer.data.prompts import Question
from pttrainer.data.tokenization.chat_template import Chat
from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.errors import ConfigError
from pttrainer.losses import value_loss
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.models import Model, preset, to_hf
from pttrainer.models.loading import value_head
from pttrainer.models.loading.model_loader import load_params
from pttrainer.models.loading.model_spec import open_source
from pttrainer.models.lora.adapters import ATTENTION, MLP, Adapters
from pttrainer.models.weights.hf_names import table
from pttrainer.models.weights.save_weights import save
from pttrainer.rollout import groups
from pttrainer.rollout.context import Context
from pttrainer.rollout.groups import EpisodeInfo, Group, Sample
from pttrainer.rollout.rollout_data import Rollout
from pttrainer.rollout.sampler import Sampler
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.sharding import put
from pttrainer.runtime.io.directory import Directory
from pttrainer.train_step.critic import Critic, CriticLearner, with_critic_params
from pttrainer.train_step.optimizer import transformation
from pttrainer.train_step.program import Program
from pttrainer.train_step.step import train_step

EOS, PAD = 257, 258
QUESTIONS = [Question([256, 10 + i, 99], f"q{i}", {"answer": str(i)}) for i in range(8)]
REFERENCES = dict(np.load(Path(__file__).with_name("references-ppo.npz")))
TOLERANCE = 1e-5
MODEL = Model(preset("tiny"))

computed = cache(ours)


def spec(algorithm: PpoSpec, **training: Any) -> PostTrainJobSpec:
    return specs.tiny({"ppo": algorithm}, training=training)


def sample(tokens: list[int], reward: float, ended: bool = True) -> Sample:
    logps = np.full(len(tokens), -0.5, np.float32)
    return Sample(tokens, logps, ended, "text", {"own": reward}, reward)


def laid(*samples: Sample) -> Batch:
    made = [Group(question, [one]) for question, one in zip(QUESTIONS, samples, strict=False)]
    return groups.lay_out(made, np.zeros((len(made), 1)), PAD, 64)


# The losses


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_advantages_returns_losses_and_gradients_are_those_of_trl(name: str) -> None:
    np.testing.assert_allclose(computed()[name], REFERENCES[name], rtol=TOLERANCE, atol=TOLERANCE)


def test_every_case_has_a_reference_that_is_not_zero() -> None:
    assert set(REFERENCES) == set(computed())
    assert all(np.abs(value).max() > 1e-3 for value in REFERENCES.values())


@pytest.mark.parametrize(
    ("value", "loss", "slope", "is_clipped"),
    [
        (0.6, 0.08, -0.4, 0.0),  # inside the interval 0.5 ± 0.2: ½·(0.6 − 1)²
        (0.9, 0.045, 0.0, 1.0),  # left it towards the return: as at its end, and no gradient
        (0.2, 0.32, -0.8, 0.0),  # left it away from the return: pulled back
    ],
)
def test_the_value_loss_is_bounded_towards_the_return_and_pulls_back_from_the_other_side(
    value: float, loss: float, slope: float, is_clipped: float
) -> None:
    of = lambda v: value_loss.clipped(v, jnp.float32(0.5), jnp.float32(1.0), 0.2)[0]  # noqa: E731
    computed_loss, gradient = jax.value_and_grad(of)(jnp.float32(value))
    np.testing.assert_allclose((computed_loss, gradient), (loss, slope), rtol=1e-5, atol=1e-7)
    assert value_loss.clipped(jnp.float32(value), jnp.float32(0.5), jnp.float32(1.0), 0.2)[1] == is_clipped
    ends = [float(of(jnp.float32(value + h))) for h in (-1e-3, 1e-3)]
    np.testing.assert_allclose((ends[1] - ends[0]) / 2e-3, slope, atol=1e-3)


def test_a_value_clip_of_0_is_none() -> None:
    loss, clipped = value_loss.clipped(jnp.float32(9.0), jnp.float32(0.0), jnp.float32(1.0), 0.0)
    assert (float(loss), float(clipped)) == (32.0, 0.0)


def test_in_the_first_update_the_gradient_is_the_plain_policy_gradient() -> None:
    batch, _ = with_returns(
        laid(sample([7, 8, EOS], 1.0), sample([EOS], 0.0)), np.array([1.0, 0.0]), nothing(2), PpoSpec()
    )
    loss = ppo.Loss(spec(PpoSpec()), Critic(8))
    logps_BT = jnp.asarray(batch.sampler_logps_BT)
    stats = lambda x: TokenStats(x, jnp.zeros_like(x))  # noqa: E731
    slope_BT = jax.grad(lambda x: jnp.sum(loss.loss(stats(x), batch._replace(old_logps_BT=None))[0]))(logps_BT)
    np.testing.assert_allclose(slope_BT, -batch.advantages_BT, atol=1e-6)


# What a rollout becomes


def nothing(rows: int, width: int = 16) -> RolloutValues:
    return RolloutValues(np.zeros((rows, width), np.float32), np.full((rows, width), -0.5, np.float32), None, None)


def test_all_tokens_weigh_alike_and_a_failed_reward_costs_its_sample_and_nothing_else() -> None:
    rewards = np.array([1.0, np.nan, 0.0])
    rows = laid(sample([7, 8, EOS], 1.0), sample([7, EOS], np.nan), sample([EOS], 0.0))
    batch, facts = with_returns(rows, rewards, nothing(3), PpoSpec())
    np.testing.assert_allclose(batch.weight_BT.sum(axis=1), [0.75, 0.0, 0.25], rtol=1e-6)
    assert not batch.advantages_BT[1].any()
    without, _ = with_returns(
        laid(sample([7, 8, EOS], 1.0), sample([EOS], 0.0)), rewards[[0, 2]], nothing(2), PpoSpec()
    )
    np.testing.assert_array_equal(batch.advantages_BT[[0, 2]], without.advantages_BT)
    assert json.loads(json.dumps(facts)) == facts


def test_a_batch_whose_rewards_all_failed_trains_nothing() -> None:
    rows = laid(sample([7, EOS], np.nan), sample([EOS], np.nan))
    batch, facts = with_returns(rows, np.full(2, np.nan), nothing(2), PpoSpec(kl_coefficient=0.0))
    assert not batch.weight_BT.any()
    assert not batch.advantages_BT.any()
    np.testing.assert_array_equal(batch.returns_BT, batch.values_BT)
    assert all(np.isfinite(value) for value in facts.values())


def test_tokens_of_tools_are_no_steps_and_have_no_penalty() -> None:
    """Tokens sampled: 2, then 2 of a tool, then the end. λ = γ = 1, penalty 0.1 · (−0.5 − −1) a sampled token."""
    sampled = [True, True, False, False, True]
    episode = EpisodeInfo(QUESTIONS[0].tokens, sampled, [], 2, 1, 0, "")
    rows = laid(sample([7, 8, 50, 51, EOS], 1.0)._replace(episode=episode))
    foretold = nothing(1)._replace(ref_NT=np.full((1, 16), -1.0, np.float32))
    batch, facts = with_returns(
        rows, np.array([1.0]), foretold, PpoSpec(kl_coefficient=0.1, gae_lambda=1.0, whiten_advantages=False)
    )
    np.testing.assert_allclose(batch.advantages_BT[0, 2:7], [0.85, 0.9, 0, 0, 0.95], rtol=1e-6)
    np.testing.assert_array_equal(batch.weight_BT[0, 2:7] > 0, sampled)
    assert facts["reward/kl_penalty"] == pytest.approx(-0.15)


def test_a_row_with_its_last_token_has_one_state_more_and_no_prediction_more() -> None:
    rows = laid(sample([7, 8, 9], 1.0, ended=False), sample([EOS], 0.0))
    wider = ppo.with_last_token(rows)
    np.testing.assert_array_equal(wider.tokens_BT[0, :7], [256, 10, 99, 7, 8, 9, PAD])
    np.testing.assert_array_equal(wider.segment_ids_BT[0, :7], [1, 1, 1, 1, 1, 1, 0])
    np.testing.assert_array_equal(wider.positions_BT[0, :7], [0, 1, 2, 3, 4, 5, 0])
    assert wider.mask_BT.sum() == rows.mask_BT.sum()
    assert ppo.last_slot(rows).tolist() == [4, 2]


@dataclass
class FakeSampler:
    """Answers with the number of the call as the reward, and half of the completions cut."""

    calls: int = 0

    def sample(self, params: Any, questions: Any, numbers: Any, samples: int, sampling: Any, draw: Any) -> Rollout:
        assert "critic" not in params
        self.calls += 1
        made = [[sample([7, 8, EOS], float(g), ended=bool(g % 2)) for g in range(samples)] for _ in questions]
        return Rollout(
            draw.step,
            [Group(q, row) for q, row in zip(questions, made, strict=True)],
            {"seconds/generate": 1.0, "seconds/reward": 1.0},
        )


class FakeContext:
    """What Ppo uses of a context."""

    deliver: Any = None
    finished: Any = None

    def __init__(self, algorithm: PpoSpec, **training: Any) -> None:
        self.spec, self.saved = spec(algorithm, **training), dict[int, Any]()
        self.model, self.mesh, self.tokenizer = MODEL, single(), byte_tokenizer()
        self.chat = Chat(self.tokenizer, self.tokenizer.template)
        self.loaded = 0

    def scoring_parts(self, batch: Batch) -> int:
        return 1

    def place(self, batch: Batch) -> Any:
        return put(self.mesh, batch)

    def score(self, params: Any, batch: Batch, temperature: float) -> TokenStats:
        assert params == "reference"
        return TokenStats(np.float32(-1.0) * batch.mask_BT, np.zeros_like(batch.mask_BT))

    def initial_params(self) -> str:
        self.loaded += 1
        return "reference"

    def save_samples(self, step: int, rows: list[dict[str, Any]]) -> None:
        self.saved[step] = rows

    def note(self, text: str) -> None: ...


def make(algorithm: PpoSpec, staleness: int = 0, **training: Any) -> tuple[Ppo, FakeContext, FakeSampler]:
    context, sampler = FakeContext(algorithm, **training), FakeSampler()
    if staleness:
        rollout = RolloutSpec(max_new_tokens=8, placement="disaggregated", max_staleness=staleness)
        context.spec, context.deliver = context.spec.model_copy(update={"rollout": rollout}), lambda policy: policy
    made = Ppo(
        cast(Context, context), algorithm, (Critic(MODEL.config.d_model), None), QUESTIONS, cast(Sampler, sampler), None
    )
    return made, context, sampler


@cache
def weights() -> Any:
    """Of policy and critic; the critic says 0.25 everywhere."""
    params = jax.jit(MODEL.init)(jax.random.key(0))
    value = {"weight": jnp.zeros(MODEL.config.d_model), "bias": jnp.float32(0.25)}
    return {**params, "critic": {"value": value}}


def test_several_updates_use_one_rollout_and_a_resumed_run_the_same_bits() -> None:
    algorithm = PpoSpec(updates_per_batch=2, samples_per_prompt=2, kl_coefficient=0.1, bootstrap_truncated=True)
    made, context, sampler = make(algorithm)
    first, facts = made.next_batch(0, weights())
    assert context.loaded == 1  # the reference
    again, later = made.next_batch(1, weights())
    assert again is first
    assert sampler.calls == 1
    is_trained = first.mask_BT > 0
    np.testing.assert_allclose(first.values_BT[is_trained], 0.25)
    assert first.old_logps_BT is not None
    assert np.all(first.ref_logps_BT[is_trained] == -1.0)
    assert facts["reward"] == 0.5
    assert facts["critic/value/mean"] == 0.25
    resumed, _, _ = make(algorithm)
    resumed.restore(json.loads(json.dumps(made.state())))
    batch, same = resumed.next_batch(1, weights())
    assert same == later
    assert same == {name: value for name, value in facts.items() if not run_directory.is_of_machine(name)}
    for name, before in first._asdict().items():
        after = getattr(batch, name)
        assert (before is None) == (after is None)
        if before is not None:
            np.testing.assert_array_equal(after, before)
    # Cut completions go on in a state worth 0.25; those that ended do not: returns at the last token.
    last = first.mask_BT.shape[1] - 1 - np.argmax(first.mask_BT[:, ::-1], axis=1)
    penalty_N = 0.1 * (first.old_logps_BT + 1.0)[np.arange(4), last]
    wanted_N = np.array([0.0 + 0.25, 1.0, 0.0 + 0.25, 1.0]) - penalty_N
    np.testing.assert_allclose(first.returns_BT[np.arange(4), last], wanted_N, rtol=1e-5)


def worth(value: float) -> Any:
    """The weights with a critic that says this everywhere."""
    return {**weights(), "critic": {"value": {**weights()["critic"]["value"], "bias": jnp.float32(value)}}}


def test_the_critic_of_stale_samples_is_that_of_their_first_update_and_a_resumed_run_asks_it_too() -> None:
    algorithm = PpoSpec(updates_per_batch=2, samples_per_prompt=2, bootstrap_truncated=True)
    made, context, sampler = make(algorithm, staleness=2)
    made.next_batch(0, worth(0.1))
    made.next_batch(1, worth(0.2))
    resumed, again, _ = make(algorithm, staleness=2)
    resumed.restore(json.loads(json.dumps(made.state())))
    assert sampler.calls == 2  # the batch of step 2 was drawn with the first weights
    batch, facts = made.next_batch(2, worth(0.3))
    same, same_facts = resumed.next_batch(2, worth(0.3))
    assert facts["staleness"] == 2
    assert facts["critic/value/mean"] == pytest.approx(0.3)
    # Sample 0 has reward 0 and was cut, sample 1 has reward 1 and ended.
    last = batch.mask_BT.shape[1] - 1 - np.argmax(batch.mask_BT[:, ::-1], axis=1)
    np.testing.assert_allclose(batch.returns_BT[np.arange(4), last], [0.3, 1.0, 0.3, 1.0], rtol=1e-6)
    of_samples = [batch.advantages_BT[row][batch.mask_BT[row] > 0].mean() for row in range(4)]
    np.testing.assert_allclose([row["advantage"] for row in context.saved[3]], of_samples, atol=1e-6)
    assert again.saved[3] == context.saved[3]
    one, other = ({k: v for k, v in x.items() if not run_directory.is_of_machine(k)} for x in (facts, same_facts))
    assert one == other
    jax.tree.map(np.testing.assert_array_equal, same, batch)


def test_without_a_penalty_no_reference_is_loaded_and_with_one_update_no_old_log_probs_are_kept() -> None:
    made, context, _ = make(PpoSpec(updates_per_batch=1))
    batch, _ = made.next_batch(0, weights())
    assert context.loaded == 0
    assert batch.old_logps_BT is None
    assert batch.ref_logps_BT is None
    assert made.total_steps == 8


# The step


def ragged() -> Batch:
    """Eight rows as a rollout lays them out, with rewards and values that differ."""
    random = np.random.default_rng(3)
    lengths = (5, 9, 3, 12, 7, 2, 10, 4)
    samples = [sample([*random.integers(0, 200, n).tolist(), EOS], 0.0) for n in lengths]
    rows = laid(*samples)
    shape = rows.mask_BT.shape
    foretold = RolloutValues(
        random.normal(0, 0.3, shape).astype(np.float32), rows.sampler_logps_BT - 5.0 * rows.mask_BT, None, None
    )
    made, _ = with_returns(rows, random.normal(0, 1, 8), foretold, PpoSpec(updates_per_batch=2))
    return made._replace(sampler_logps_BT=made.old_logps_BT)


HEAD = Critic(MODEL.config.d_model)
OF_ITS_OWN = Critic(MODEL.config.d_model, replace(MODEL, config=replace(MODEL.config, tied_head=True)))
# A step of Adam with this eps is proportional to the gradient, so equal weights afterwards mean equal gradients.
PROPORTIONAL = Optimizer(eps=1.0, max_grad_norm=1e6)


@cache
def program(critic: Critic, shape: tuple[int, ...] = (1,), micro: int | None = None) -> Any:
    """A compiled step, and a fresh state for it."""
    mesh = sharding.make_mesh(shape, None if np.prod(shape) > 1 else jax.devices()[:1])
    rate = transformation.schedule(Schedule(), 1.0, 10)
    learner = CriticLearner(critic, transformation.build(PROPORTIONAL, rate, critic.logical_axes()), rate)
    updates = transformation.build(PROPORTIONAL, rate, MODEL.logical_axes())
    loss = ppo.Loss(spec(PpoSpec(updates_per_batch=2)), critic)
    made = Program(MODEL, loss, updates, rate, micro, learner=learner)
    where = made.layout(mesh)

    def fresh() -> Any:
        """From numbers on the host: nothing is compiled for it."""
        params = jax.device_get({name: part for name, part in weights().items() if name != "critic"})
        own: dict[str, Any] = {"value": {"weight": np.full(critic.width, 0.01, np.float32), "bias": np.float32(0.1)}}
        if critic.model is not None:
            own["model"] = jax.tree.map(lambda x: np.float32(1.01) * x, params)
        state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), made.abstract_state(where))
        state = state._replace(params=params, critic=state.critic._replace(params=own))
        return jax.device_put(state, where.state)

    return mesh, train_step(made, where), fresh


def after(*of_program: Any, silent: bool = False) -> Any:
    """The state before and after two steps, and their metrics. silent: with advantages of 0."""
    mesh, train, fresh = program(*of_program)
    batch = ragged()
    if silent:
        batch = batch._replace(advantages_BT=np.zeros_like(batch.advantages_BT))
    with jax.set_mesh(mesh):
        state = fresh()
        before = jax.device_get(state)
        metrics = []
        for _ in range(2):
            state, measured = train(state, put(mesh, batch))
            metrics.append({name: float(value) for name, value in measured.items()})
    return before, jax.device_get(state), metrics


def moved(before: Any, now: Any) -> float:
    return float(max(np.abs(x - y).max() for x, y in zip(*map(jax.tree.leaves, (before, now)), strict=True)))


def test_micro_batches_on_eight_devices_are_the_same_step_for_policy_and_critic() -> None:
    _, whole, metrics = after(HEAD)
    _, split, of_split = after(HEAD, (2, 2, 2), 4)
    for one, other in ((whole.params, split.params), (whole.critic.params, split.critic.params)):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5), one, other)
    for here, there in zip(metrics, of_split, strict=True):
        np.testing.assert_allclose(list(here.values()), list(there.values()), rtol=2e-4, atol=2e-5)


def test_a_critic_of_its_own_that_is_split_by_fsdp_and_tensor_is_the_same_as_whole() -> None:
    before, whole, metrics = after(OF_ITS_OWN)
    _, split, of_split = after(OF_ITS_OWN, (1, 4, 2))
    assert moved(before.critic.params["model"], whole.critic.params["model"]) > 1e-6
    for one, other in ((whole.params, split.params), (whole.critic.params, split.critic.params)):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5), one, other)
    for here, there in zip(metrics, of_split, strict=True):
        np.testing.assert_allclose(list(here.values()), list(there.values()), rtol=2e-4, atol=2e-5)


def test_the_critic_comes_nearer_to_its_returns() -> None:
    _, _, metrics = after(HEAD)
    assert metrics[1]["critic/loss"] < metrics[0]["critic/loss"]
    assert metrics[0]["critic/grad_norm"] > 0


def test_the_head_s_gradient_is_the_analytic_one() -> None:
    """∂/∂b of c · Σ weight · ½(V − R)² is c · Σ weight · (V − R), and ∂/∂w the same times the hidden states."""
    batch = ragged()
    critic, objective = Critic(4), ppo.Loss(spec(PpoSpec(value_coefficient=0.3, value_clip=0.0)), Critic(4))
    hidden = np.random.default_rng(1).normal(size=(*batch.mask_BT.shape, 4)).astype(np.float32)

    def loss(value: Any) -> Any:
        values_BT = critic.values({"value": value}, jnp.asarray(hidden), batch)
        return jnp.sum(objective.value_loss(values_BT, batch)[0] * batch.weight_BT)

    value = {"weight": jnp.array([0.1, -0.2, 0.3, 0.0]), "bias": jnp.float32(0.05)}
    gradient = jax.grad(loss)(value)
    error = 0.3 * batch.weight_BT * (hidden @ np.array([0.1, -0.2, 0.3, 0.0]) + 0.05 - batch.returns_BT)
    np.testing.assert_allclose(gradient["bias"], error.sum(), rtol=1e-4)
    np.testing.assert_allclose(gradient["weight"], np.einsum("btd,bt->d", hidden, error), rtol=1e-4, atol=1e-6)


def test_a_head_trains_the_policy_s_layers_too_and_a_critic_model_leaves_them_alone() -> None:
    """With advantages of 0 the policy's only gradient is the critic's."""
    before, now, _ = after(HEAD, silent=True)
    assert moved(before.params, now.params) > 1e-6
    before, now, metrics = after(OF_ITS_OWN, silent=True)
    assert moved(before.params, now.params) == 0.0
    assert moved(before.critic.params["model"], now.critic.params["model"]) > 1e-6
    assert metrics[0]["grad_norm"] == 0.0
    assert metrics[0]["critic/grad_norm"] > 0


def test_a_critic_model_has_no_output_head_and_is_sharded_as_the_policy_is() -> None:
    untied = replace(MODEL, config=replace(MODEL.config, tied_head=False))
    critic, source = ppo.critic_of(PpoSpec.model_validate({"critic": {"kind": "model"}}), untied, print)
    assert source is None
    assert "head" not in critic.abstract()["model"]
    assert "head" in untied.abstract()
    where = sharding.weight_shardings(sharding.make_mesh((1, 8)), critic.abstract(), critic.logical_axes())
    assert any("fsdp" in str(leaf.spec) for leaf in jax.tree.leaves(where["model"]))
    assert with_critic_params({"a": 1}, None) == {"a": 1}


def adapted() -> tuple[Critic, Any, Any]:
    """A critic with adapters, its weights, and the frozen weights of a policy that has an output head of its own."""
    policy = replace(MODEL, adapters=Adapters(4, 8.0, ATTENTION + MLP), config=replace(MODEL.config, tied_head=False))
    critic, _ = ppo.critic_of(PpoSpec.model_validate({"critic": {"kind": "model"}}), policy, print)
    random = np.random.default_rng(5)
    numbers = jax.tree.map(lambda x: random.normal(0, 0.3, x.shape).astype(np.float32), critic.abstract())
    frozen = {name: part for name, part in weights().items() if name != "critic"}
    return critic, numbers, {**frozen, "head": np.zeros((MODEL.config.vocab_size, MODEL.config.d_model), np.float32)}


def test_a_critic_s_adapters_on_the_policy_s_weights_are_the_merged_model_also_in_the_export(tmp_path: Path) -> None:
    critic, numbers, frozen = adapted()
    assert critic.abstract()["model"] == critic.model.trained(critic.model.abstract())
    batch = ragged()
    values = jax.jit(critic.values)(numbers, None, batch, frozen)
    export_critic(Directory(tmp_path), critic, numbers, frozen, ExportWriter(jax.device_get))
    whole = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shardings = jax.tree.map(lambda x: whole, OF_ITS_OWN.abstract())
    source = open_source(f"file://{tmp_path}", "field", print)
    read = {
        "value": value_head.load_or_zeros(tmp_path, critic.width, shardings["value"], "field"),
        "model": load_params(source, cast(Model, OF_ITS_OWN.model), shardings["model"]),
    }
    np.testing.assert_allclose(values, jax.jit(OF_ITS_OWN.values)(read, None, batch), rtol=1e-4, atol=1e-4)
    plain = {name: part for name, part in frozen.items() if name != "head"}
    assert np.abs(values - jax.jit(OF_ITS_OWN.values)({**read, "model": plain}, None, batch)).max() > 0.1


# Its weights on disk


def test_a_value_head_that_was_written_begins_the_next_run_to_the_bit(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).normal(size=6).astype(np.float32)
    value_head.write(tmp_path / value_head.FILE, {"weight": weight, "bias": np.float32(0.5)}, np.asarray)
    whole = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    where = {"weight": whole, "bias": whole}
    directory = value_head.directory(f"file://{tmp_path}", "field", print)
    loaded = value_head.load_or_zeros(directory, 6, where, "field")
    np.testing.assert_array_equal(loaded["weight"], weight)
    assert float(loaded["bias"]) == 0.5
    assert not np.any(value_head.load_or_zeros(None, 6, where, "field")["weight"])
    with pytest.raises(ConfigError, match=r"field: .*holds .*accepted: value_head.weight \[1, 7\]"):
        value_head.load_or_zeros(directory, 7, where, "field")
    with pytest.raises(ConfigError, match="accepted: the export/critic of a run"):
        value_head.directory(f"file://{tmp_path.parent}", "field", print)


def test_a_critic_begins_from_a_model_with_an_output_head_of_its_own(tmp_path: Path) -> None:
    untied = Model(replace(preset("tiny"), tied_head=False))
    params = untied.init(jax.random.key(0))
    save(table(untied.config), params, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(to_hf(untied.config)))
    spec = PpoSpec.model_validate({"critic": {"kind": "model", "uri": f"file://{tmp_path}"}})
    critic, source = ppo.critic_of(spec, Model(preset("tiny")), lambda line: None)
    assert critic.model is not None
    assert source is not None
    mesh = single()
    where = sharding.weight_shardings(mesh, critic.model.abstract(), critic.model.logical_axes())
    loaded = load_params(source, critic.model, where)
    assert "head" not in loaded
    np.testing.assert_array_equal(loaded["embedding"], params["embedding"])
