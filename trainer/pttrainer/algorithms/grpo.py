"""Group-relative policy optimisation (arXiv 2402.03300) and its relatives.

A step draws P prompts, samples G completions of each, scores them, and turns the rewards of a group into advantages
(`advantages`); of several rewards it takes the weighted sum, or that of their z-scores in the group. The loss of a
token is

    policy loss (`losses.policy_gradient`) · importance (`losses.sampler_correction`)  +  β · KL(policy ‖ reference)

reduced as the variant's paper says, with weights from the mask of the whole step. With `updatesPerBatch` = μ, μ
optimizer steps use the same samples; `old` log-probs are then computed once, before the first of them.

With `rollout.maxStaleness` the samples are of older weights (`rollout.disaggregated.async_pipeline`); `old` is still
the policy at the first update, so the second factor corrects for them, too, token by token where samples outlive
weight updates (`rollout.inFlightUpdates`). Degenerate case: with μ = 1 the ratio is 1 everywhere and the loss is about
0 whatever happens; watch reward, entropy and gradient norm.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ptapi.spec import Grpo as GrpoSpec
from ptapi.spec import PostTrainJobSpec
from pttrainer.algorithms import prompt_sharing
from pttrainer.algorithms.credit_assignment import advantages
from pttrainer.algorithms.on_policy import OnPolicyAlgorithm
from pttrainer.batch import Batch
from pttrainer.data.loss_weights import Mean, Metric
from pttrainer.data.prompts import Question
from pttrainer.losses import policy_gradient, policy_metrics, reference_kl, sampler_correction
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.losses.loss_traits import by_token
from pttrainer.losses.sampler_correction import Correction
from pttrainer.models import Params
from pttrainer.rollout import groups
from pttrainer.rollout.context import Context
from pttrainer.rollout.engine import SamplerWeights
from pttrainer.rollout.evaluation import evaluator
from pttrainer.rollout.evaluation.evaluator import Evaluation
from pttrainer.rollout.groups import Group, Sample
from pttrainer.rollout.multi_turn import episode_sampler
from pttrainer.rollout.rollout_data import Rollout, missing_rewards
from pttrainer.rollout.rollout_metrics import summary
from pttrainer.rollout.sampler import Sampler
from pttrainer.train_step import entropy


class Loss:
    """The policy loss that the spec names (`Objective`)."""

    entropy = True
    level = False

    def __init__(self, spec: PostTrainJobSpec) -> None:
        assert spec.algorithm.grpo is not None
        self._spec = spec.algorithm.grpo
        self._variant = policy_gradient.VARIANTS[self._spec.loss]
        self._clip = _clip(self._spec, self._variant.clip)
        correction = self._spec.sampler_correction
        self._correction = Correction(correction.mode, correction.lowest, correction.highest)
        self.by_token = by_token(spec.algorithm)
        self.top_entropy_share = self._spec.top_entropy_quantile
        self.temperature = spec.rollout.temperature

    def loss(self, stats: TokenStats, batch: Batch) -> tuple[Array, dict[str, Metric]]:
        """Return the policy loss with importance correction and the KL penalty, and metrics."""
        logps_BT, mask_BT = stats.logps_BT, batch.mask_BT
        old_BT = policy_gradient.old_policy(logps_BT, batch)
        importance_BT = sampler_correction.weights(old_BT, batch.sampler_logps_BT, mask_BT, self._correction)
        anchor_BT, factor_BT = sampler_correction.anchor(
            self._variant.old, old_BT, jnp.asarray(batch.sampler_logps_BT), importance_BT
        )
        loss_BT, ratio_BT = self._variant.loss(logps_BT, anchor_BT, batch.advantages_BT, mask_BT, self._clip)
        kept_BT = self._kept(logps_BT, batch)
        loss_BT = loss_BT * factor_BT if kept_BT is None else loss_BT * factor_BT * kept_BT
        chosen_BT = self._chosen(stats, batch)
        if chosen_BT is not None:
            loss_BT = jnp.where(chosen_BT > 0, loss_BT, 0.0)
        metrics = policy_metrics.of_policy(
            stats, batch, old_BT, ratio_BT, importance_BT, self._clip, self._variant.clipped, anchor_BT
        )
        if kept_BT is not None or self._correction.is_mask:
            is_masked_BT = importance_BT == 0.0 if kept_BT is None else importance_BT * kept_BT == 0.0
            metrics["sampler/masked"] = Mean(is_masked_BT)
        if batch.ref_logps_BT is not None:
            weight_BT = jnp.exp(policy_gradient.log_ratio(logps_BT, anchor_BT)) * factor_BT
            pull_BT = reference_kl.kl(self._spec.kl, logps_BT, batch.ref_logps_BT, weight_BT)
            loss_BT = loss_BT + self._spec.beta * pull_BT
        if chosen_BT is not None:
            metrics[entropy.CHOSEN] = Mean(stats.entropy_BT * chosen_BT)
        if batch.entropy_bonus_BT is not None:
            bonus_BT = batch.entropy_bonus_BT * stats.entropy_BT
            loss_BT = loss_BT - (bonus_BT if chosen_BT is None else bonus_BT * chosen_BT)
        return loss_BT, metrics

    def _chosen(self, stats: TokenStats, batch: Batch) -> Array | None:
        """Return N / K for the tokens of highest entropy and 0 for others; None where all are trained on."""
        if self.top_entropy_share is None:
            return None
        if batch.chosen_BT is not None:
            return jnp.asarray(batch.chosen_BT)
        return entropy.chosen(lax.stop_gradient(stats.entropy_BT), batch.mask_BT, self.top_entropy_share)

    def _kept(self, logps_BT: Array, batch: Batch) -> Array | None:
        """Return 0 for the tokens that the off-policy threshold leaves out, None without one."""
        if self._spec.off_policy_threshold is None:
            return None
        sampler_BT, advantages_BT = jnp.asarray(batch.sampler_logps_BT), jnp.asarray(batch.advantages_BT)
        threshold = self._spec.off_policy_threshold
        return sampler_correction.kept(logps_BT, sampler_BT, advantages_BT, batch.mask_BT, threshold)


FIRST_NOTED_TRY = 8
"""Tries of dynamic sampling in one step before the first log line."""


class Grpo(Loss, OnPolicyAlgorithm):
    """Batches from rollouts, with advantages within groups."""

    min_rewarded = 2

    def __init__(
        self,
        context: Context,
        spec: GrpoSpec,
        train: list[Question],
        sampler: Sampler,
        evaluation: Evaluation | None,
        shared: int | None = None,
    ) -> None:
        """Initialise. shared: prompt slots shared by all samples of a prompt (`prompt_sharing`)."""
        Loss.__init__(self, context.spec)
        OnPolicyAlgorithm.__init__(self, context, train, sampler, evaluation)
        self._advantages = advantages.ESTIMATORS[spec.advantage or self._variant.advantage]
        self._shared = shared
        self._weights = {reward.label: reward.weight for reward in context.spec.rewards}
        if context.spec.environment is not None:
            self._weights[episode_sampler.REWARD] = context.spec.environment.reward_weight

    def _collect(self, step: int, weights: SamplerWeights) -> Rollout:
        """Return scored groups; dynamic sampling replaces groups without spread while tries last."""
        rollout = self._draw(step, weights)
        if self._spec.dynamic_sampling is None:
            return rollout
        chosen, replaced, last = rollout.groups, 0, rollout
        for tries in range(self._spec.dynamic_sampling.max_tries):
            flat = np.flatnonzero(~advantages.has_spread(self._compared(chosen)))
            if not flat.size or missing_rewards(last, self.min_rewarded) is not None:
                break  # failing rewards take long, and would fail again
            self._note_many_tries(step, tries, len(flat), len(chosen))
            last = more = self._draw(step, weights)
            spread = advantages.has_spread(self._compared(more.groups))
            fresh = [group for group, has_spread in zip(more.groups, spread, strict=True) if has_spread]
            for place, group in zip(flat, fresh, strict=False):
                chosen[place] = group
                replaced += 1
            rollout = rollout.with_more(chosen, more)
        return replace(rollout, facts={**rollout.facts, "groups/replaced": float(replaced)})

    def _note_many_tries(self, step: int, tries: int, flat: int, groups: int) -> None:
        """Log a line at 8, 16, 32, … tries: a step that keeps sampling looks like one that hangs."""
        if tries >= FIRST_NOTED_TRY and tries & (tries - 1) == 0:
            self._context.note(
                f"step {step + 1}: {tries} tries of dynamic sampling, and {flat} of {groups} groups still have equal "
                "rewards; hint: use partial credit, other prompts, or a lower "
                "algorithm.grpo.dynamicSampling.maxTries"
            )

    def _draw(self, step: int, weights: SamplerWeights) -> Rollout:
        """Sample and score the next prompts, with the penalty for overlong completions."""
        rollout = self._prompt_stream.draw(step, weights)
        if self._spec.overlong is None:
            return rollout
        return replace(rollout, groups=[self._with_penalty(group) for group in rollout.groups])

    def _with_penalty(self, group: Group) -> Group:
        samples = [sample._replace(reward=sample.reward + self._penalty(sample)) for sample in group.samples]
        return group._replace(samples=samples)

    def _penalty(self, sample: Sample) -> float:
        """Return DAPO's soft overlong penalty: 0 up to `limit − buffer` tokens, then linear to −1 at `limit`."""
        if self._spec.overlong is None:
            return 0.0
        limit, buffer = self._sampling.max_new_tokens, self._spec.overlong.buffer_tokens
        return -min(max(sample.length - (limit - buffer), 0) / buffer, 1.0)

    def _compared(self, scored: list[Group]) -> np.ndarray:
        """Return the `rewards_PG` by which the samples of a group are compared."""
        if self._spec.combine_rewards == "sum":
            return groups.rewards(scored)
        parts = groups.reward_parts(scored)
        penalties_PG = np.array([[self._penalty(sample) for sample in group.samples] for group in scored])
        summed_PG = advantages.combined(list(parts.values()), [self._weights[name] for name in parts])
        return np.asarray(summed_PG + penalties_PG)

    def _lay_out(self, rollout: Rollout) -> Rollout:
        rewards_PG, compared_PG = groups.rewards(rollout.groups), self._compared(rollout.groups)
        advantages_PG = self._advantages(compared_PG)
        length = self._context.spec.training.sequence_length
        batch = groups.lay_out(
            rollout.groups, advantages_PG, self._context.tokenizer.pad_id, length, self._shared, self._images
        )
        if self._spec.mask_truncated:
            batch = batch._replace(mask_BT=groups.without_truncated(batch.mask_BT, rollout.samples))
        environment = self._context.spec.environment
        most = self._sampling.max_new_tokens * (1 if environment is None else environment.max_turns)
        batch = batch._replace(weight_BT=self._variant.weights(batch.mask_BT, most))
        if self._spec.entropy_bonus is not None:
            wanted = self._spec.entropy_bonus
            coefficient = wanted.coefficient if wanted.adaptive is None else 1.0  # the step multiplies by its own
            batch = batch._replace(entropy_bonus_BT=entropy.bonus(batch.mask_BT, batch.weight_BT, coefficient))
        return rollout.laid_out(batch, advantages_PG, _group_facts(rewards_PG, compared_PG, advantages_PG))

    @property
    def _scores_old(self) -> bool:
        return self._updates > 1

    def _with_policy_terms(self, rollout: Rollout, params: Params) -> Rollout:
        """Add the log-probs before the first update, if there are several updates."""
        if self._updates == 1:
            return rollout
        return rollout.with_facts({}, old_logps_BT=self._logps(params, rollout.batch))


def build(context: Context) -> Grpo:
    """Read the prompts and load the rewards. Raises ConfigError, DataError or UserCodeError."""
    spec = context.spec.algorithm.grpo
    assert spec is not None
    sampler = evaluator.job_sampler(context)
    train = evaluator.read_questions(context, "train", sampler)
    shared = prompt_sharing.prompt_slots(context, train, spec.group_size)
    return Grpo(context, spec, train, sampler, evaluator.evaluation(context, sampler), shared)


def _clip(spec: GrpoSpec, paper: policy_gradient.Clip) -> policy_gradient.Clip:
    low = paper.low if spec.clip_low is None else spec.clip_low
    high = paper.high if spec.clip_high is None else spec.clip_high
    soft, gamma = paper.soft, paper.gamma
    if spec.soft_clip is not None:
        soft = spec.soft_clip.positive, spec.soft_clip.negative
    if spec.gamma_weight is not None:
        wanted = spec.gamma_weight
        gamma = (wanted.positive_power, wanted.positive_decay), (wanted.negative_power, wanted.negative_decay)
    return policy_gradient.Clip(low, high, spec.dual_clip, soft, gamma)


def _group_facts(rewards_PG: np.ndarray, compared_PG: np.ndarray, advantages_PG: np.ndarray) -> dict[str, float]:
    spread = advantages.zero_spread(rewards_PG)
    return {
        "groups/all_right": spread.all_right / spread.groups,
        "groups/all_wrong": spread.all_wrong / spread.groups,
        "groups/dropped": float((~advantages.has_spread(compared_PG)).mean()),
        **summary("advantage", advantages_PG),
    }
