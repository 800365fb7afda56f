"""Proximal policy optimisation (arXiv 1707.06347) with a critic and generalised advantages (1506.02438).

A step draws prompts, samples completions, scores them, and computes the critic's value at every token. A token's reward
is −β·(log π − log π_ref), the k1 penalty, and the completion's reward is added at its last token; `gae` turns them into
advantages and returns. With `updatesPerBatch` = μ, μ optimizer steps use the same samples:

    policy   −min(w·A, clip(w, 1−ε, 1+ε)·A) · min(exp(old − sampler), 2)         w = exp(log π − old)
    critic   c · ½ · max((V − R)², (clip(V, V_old − ε_V, V_old + ε_V) − R)²)                  (`value_loss`)

Both are means over all tokens that the policy sampled in completions with a reward; A is whitened over these tokens. A
penalty inside the reward has no gradient of its own, so k1, useless as a loss, is the right estimator here.

Left out: minibatches within an update (a batch is one step, in `microBatchSize` pieces), an adaptive coefficient, a
loss on entropy. Degenerate cases: in the first update w is 1 and V = V_old; samples without a reward weigh nothing, and
a batch without any trains nothing; a single token has advantage 0 once whitened.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from ptapi.spec import PostTrainJobSpec
from ptapi.spec import Ppo as PpoSpec
from pttrainer.algorithms.algorithm import Call
from pttrainer.algorithms.credit_assignment import gae
from pttrainer.algorithms.on_policy import OnPolicyAlgorithm
from pttrainer.batch import Batch
from pttrainer.data import loss_weights
from pttrainer.data.loss_weights import Mean, Metric
from pttrainer.data.prompts import Question
from pttrainer.errors import ConfigError
from pttrainer.losses import policy_gradient, policy_metrics, sampler_correction, value_loss
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.losses.loss_traits import BY_TOKEN
from pttrainer.models import Model, Params
from pttrainer.models.loading import model_spec, value_head
from pttrainer.models.loading.model_loader import load_params
from pttrainer.models.loading.model_spec import CRITIC_URI, ModelSource
from pttrainer.rollout import groups
from pttrainer.rollout.context import Context
from pttrainer.rollout.evaluation import evaluator
from pttrainer.rollout.evaluation.evaluator import Evaluation
from pttrainer.rollout.native.buckets import slots_for
from pttrainer.rollout.rollout_data import Rollout
from pttrainer.rollout.rollout_metrics import summary
from pttrainer.rollout.sampler import Sampler
from pttrainer.runtime.background_compile import EarlyFunction
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.io.model_files import Note
from pttrainer.train_step import critic as critics
from pttrainer.train_step import scoring
from pttrainer.train_step.critic import Critic


class Loss:
    """The clipped policy loss, and the critic's (`Objective`, `HasCritic`)."""

    entropy = True
    level = False
    by_token = BY_TOKEN["ppo"]

    def __init__(self, spec: PostTrainJobSpec, critic: Critic) -> None:
        assert spec.algorithm.ppo is not None
        self._spec, self.critic = spec.algorithm.ppo, critic
        self.critic_rate = spec.algorithm.ppo.critic.learning_rate
        self._clip = policy_gradient.Clip(self._spec.clip, self._spec.clip)
        self.temperature = spec.rollout.temperature

    def loss(self, stats: TokenStats, batch: Batch) -> tuple[Array, dict[str, Metric]]:
        """Return the clipped surrogate with importance correction, and metrics."""
        logps_BT = stats.logps_BT
        old_BT = policy_gradient.old_policy(logps_BT, batch)
        loss_BT, ratio_BT = policy_gradient.token(logps_BT, old_BT, batch.advantages_BT, batch.mask_BT, self._clip)
        importance_BT = sampler_correction.weights(old_BT, batch.sampler_logps_BT, batch.mask_BT)
        metrics = policy_metrics.of_policy(stats, batch, old_BT, ratio_BT, importance_BT, self._clip)
        return loss_BT * importance_BT, metrics

    def value_loss(self, values_BT: Array, batch: Batch) -> tuple[Array, dict[str, Metric]]:
        """Return the clipped squared error times the coefficient, and metrics."""
        loss_BT, clipped_BT = value_loss.clipped(values_BT, batch.values_BT, batch.returns_BT, self._spec.value_clip)
        facts: dict[str, Metric] = {"critic/loss": Mean(loss_BT), "critic/clip_fraction": Mean(clipped_BT)}
        return self._spec.value_coefficient * loss_BT, facts


class RolloutValues(NamedTuple):
    """Values and log-probs of a rollout before its first update. after_N: the value where a completion was cut."""

    values_NT: np.ndarray
    old_NT: np.ndarray | None
    ref_NT: np.ndarray | None
    after_N: np.ndarray | None


class Ppo(Loss, OnPolicyAlgorithm):
    """Batches from rollouts, with advantages and returns of tokens."""

    def __init__(
        self,
        context: Context,
        spec: PpoSpec,
        critic: tuple[Critic, ModelSource | None],
        train: list[Question],
        sampler: Sampler,
        evaluation: Evaluation | None,
    ) -> None:
        Loss.__init__(self, context.spec, critic[0])
        OnPolicyAlgorithm.__init__(self, context, train, sampler, evaluation)
        self._source = critic[1]
        replicated = sharding.replicated(context.mesh)
        needs_old = spec.updates_per_batch > 1 or self._reference is not None
        self._values = EarlyFunction(
            scoring.value_step(context.model, self.critic, replicated, self.temperature, scored=needs_old)
        )

    def expected_calls(self, params: Params, *, held_out: bool) -> Iterator[Call]:
        """Yield the call that computes the values of the batch that is expected."""
        batch = None if held_out else self.expected_batch()
        if batch is None or self._context.scoring_parts(batch) > 1:
            return
        shapes = sharding.batch_shapes(self._context.mesh, scoring.scored_parts(self._read(batch)))
        yield Call(self._values, (*critics.split_critic_params(params), shapes))

    def first_critic(self, shardings: Params) -> Params:
        """Return a value head that is 0 or another run's, and a critic model's initial weights.

        Initial adapters change nothing.
        """
        spec, note = self._spec.critic, self._context.note
        directory = None if self._source is None else self._source.directory
        if spec.kind == "head" and spec.uri is not None:
            directory = value_head.directory(spec.uri, CRITIC_URI, note)
        value = value_head.load_or_zeros(directory, self.critic.width, shardings["value"], CRITIC_URI)
        if self.critic.model is None:
            return {"value": value}
        where, seed = shardings["model"], self._context.spec.training.seed + 2
        if self.critic.model.adapters is not None:
            return {"value": value, "model": self.critic.model.init_adapters(where, seed)}
        if self._source is not None:  # random weights: of another seed than the policy's and a teacher's
            return {"value": value, "model": load_params(self._source, self.critic.model, where, seed=seed)}
        weights = {name: part for name, part in self._context.initial_params().items() if name in where}
        return {"value": value, "model": weights}

    def _policy_params(self, params: Params) -> Params:
        return critics.split_critic_params(params)[0]

    def _lay_out(self, rollout: Rollout) -> Rollout:
        """Add the tokens alone: their advantages follow from the critic."""
        length = self._context.spec.training.sequence_length
        unknown_PG = np.zeros_like(groups.rewards(rollout.groups))
        batch = groups.lay_out(rollout.groups, unknown_PG, self._context.tokenizer.pad_id, length, images=self._images)
        return rollout.laid_out(batch, unknown_PG, {})

    def _with_policy_terms(self, rollout: Rollout, params: Params) -> Rollout:
        """Add the critic's values, advantages and returns; the table shows a sample's mean advantage."""
        values = self._rollout_values(rollout.batch, rollout.ended_N, *critics.split_critic_params(params))
        batch, facts = with_returns(rollout.batch, rollout.rewards_N, values, self._spec)
        of_samples_N = batch.advantages_BT.sum(axis=1) / np.maximum(batch.mask_BT.sum(axis=1), 1.0)
        shown = zip(rollout.table, of_samples_N, strict=False)  # a table may hold fewer rows than the rollout
        table = [{**row, "advantage": round(float(advantage), 6)} for row, advantage in shown]
        return replace(rollout, rows=batch, facts={**rollout.facts, **facts}, table=table)

    def _rollout_values(self, laid: Batch, ended_N: np.ndarray, policy: Params, critic: Params) -> RolloutValues:
        T = laid.mask_BT.shape[1]
        read = self._read(laid)

        def computed(part: Batch) -> Any:
            placed = self._context.place(scoring.scored_parts(part))
            return jax.tree.map(np.asarray, self._values(policy, critic, placed))

        values_NT, old_NT = read.by_parts(self._context.scoring_parts(read), computed)
        after_N = None
        if read is not laid:
            after_N = np.where(ended_N, 0.0, values_NT[np.arange(len(values_NT)), last_slot(laid) + 1])
        return RolloutValues(values_NT[:, :T], None if old_NT is None else old_NT[:, :T], laid.ref_logps_BT, after_N)

    def _read(self, laid: Batch) -> Batch:
        """Return the rows that the critic reads."""
        return with_last_token(laid) if self._spec.bootstrap_truncated else laid


def with_returns(
    laid: Batch, rewards_N: np.ndarray, values: RolloutValues, spec: PpoSpec
) -> tuple[Batch, dict[str, float]]:
    """Return the batch with advantages, returns and weights, and facts about them. Pure."""
    mask_NT = np.asarray(laid.mask_BT)
    counts_NT = mask_NT * ~np.isnan(rewards_N)[:, None]
    log_ratio_NT = None
    if values.ref_NT is not None and values.old_NT is not None:
        log_ratio_NT = values.old_NT.astype(np.float64) - values.ref_NT
    rewards_NT = gae.token_rewards(rewards_N, counts_NT, log_ratio_NT, spec.kl_coefficient)
    raw_NT, returns_NT = gae.estimate(
        rewards_NT, values.values_NT, counts_NT, spec.gamma, spec.gae_lambda, values.after_N
    )
    advantages_NT = gae.whiten(raw_NT, counts_NT) if spec.whiten_advantages else raw_NT
    batch = laid._replace(
        advantages_BT=advantages_NT.astype(np.float32),
        values_BT=(values.values_NT * mask_NT).astype(np.float32),
        returns_BT=np.where(counts_NT > 0, returns_NT, values.values_NT * mask_NT).astype(np.float32),
        weight_BT=loss_weights.token_mean(counts_NT),
        old_logps_BT=values.old_NT if spec.updates_per_batch > 1 else None,
        ref_logps_BT=values.ref_NT,
    )
    is_step_NT = counts_NT > 0
    facts = {
        **summary("advantage", raw_NT[is_step_NT]),
        **summary("critic/value", values.values_NT[is_step_NT].astype(np.float64)),
        **summary("critic/return", returns_NT[is_step_NT]),
        "critic/explained_variance": gae.explained_variance(values.values_NT, returns_NT, counts_NT),
    }
    if log_ratio_NT is not None:
        facts["reward/kl_penalty"] = -spec.kl_coefficient * float((log_ratio_NT * mask_NT).sum(axis=1).mean())
    return batch, facts


def with_last_token(laid: Batch) -> Batch:
    """Return the rows with one more token: the state after a completion's last token has a value."""
    N, T = laid.mask_BT.shape
    wider = slots_for(T + 1)

    def widened(x: np.ndarray) -> np.ndarray:
        return np.pad(x, ((0, 0), (0, wider - T), *((0, 0),) * (x.ndim - 2)))

    padded: Batch = jax.tree.map(widened, laid._replace(images=None))
    if laid.images is not None:
        padded = padded._replace(images=laid.images._replace(slots_BT=widened(laid.images.slots_BT)))
    if padded.routes_BTLk is not None:
        padded.routes_BTLk[:, T:] = np.iinfo(padded.routes_BTLk.dtype).max
    rows, last_N = np.arange(N), last_slot(laid)
    padded.tokens_BT[rows, last_N + 1] = laid.targets_BT[rows, last_N]
    padded.positions_BT[rows, last_N + 1] = laid.positions_BT[rows, last_N] + 1
    padded.segment_ids_BT[rows, last_N + 1] = laid.segment_ids_BT[rows, last_N]
    return padded


def last_slot(laid: Batch) -> np.ndarray:
    """Return the slot of each row's last token, [N]."""
    return np.asarray((np.asarray(laid.segment_ids_BT) > 0).sum(axis=1) - 1)


def build(context: Context) -> Ppo:
    """Read the prompts, load the rewards and find the critic. Raises ConfigError, DataError or UserCodeError."""
    spec = context.spec.algorithm.ppo
    assert spec is not None
    critic = critic_of(spec, context.model, context.note)
    _check_tokens(critic[0], spec, context)
    sampler = evaluator.job_sampler(context)
    train = evaluator.read_questions(context, "train", sampler)
    return Ppo(context, spec, critic, train, sampler, evaluator.evaluation(context, sampler))


def _check_tokens(critic: Critic, spec: PpoSpec, context: Context) -> None:
    if critic.model is not None and critic.model.config.vocab_size < context.tokenizer.size:
        raise ConfigError(
            f"{CRITIC_URI}: {spec.critic.uri}: has {critic.model.config.vocab_size} tokens, but the policy's tokenizer "
            f"has {context.tokenizer.size}; accepted: a critic with the policy's tokenizer"
        )


def critic_of(spec: PpoSpec, policy: Model, note: Note) -> tuple[Critic, ModelSource | None]:
    """Return the critic, and the source of a critic model that differs from the policy's. Raises ConfigError."""
    form, source = model_spec.critic_of(spec, policy, note)
    if form is None:
        return Critic(policy.config.d_model), None
    return Critic(form.config.d_model, Model.from_structure(form)), source
