"""Self-distillation policy optimisation (SDPO, arXiv 2601.20802): samples learn from the student's own hindsight.

A step draws P prompts and G samples of each. A sample of which another one of its prompt is good (reward of at least
`minReward`) is read by the student once more, after a prompt that shows the first such one; what it predicts there,
token by token, is what the sample learns:

    loss = Σ m · min(w, c) · D_β(teacher(· | prompt, solution, x_<t), student(· | prompt, x_<t))
    w = exp(sg(lp − old))                          mean over the samples that learn of their token means

D_β is the divergence of `losses.divergence`, over the vocabulary, over the student's top k, or at the sampled token
alone; `old` is the policy before the batch's first update, so w is 1 with one update per batch. A failed sample of a
prompt without a good one learns nothing, unless `feedbackContext` tells the teacher something else. So a reward of 0 or
1 becomes a signal at every token, and a sample that is right already learns from another right one.

With `distillationWeight` λ below 1 (TRL's `distillation_weight`) the loss is λ times this one and 1 − λ times the
policy loss of `grpo`: that over all samples, by their advantages, this over those that learn. Both come from one pass
of the student. At 0 there is no teacher.

Left out: the renormalised top k without "any other", images, environments, and a correction of the divergence for
samples of older weights, as in `distill`; the policy loss has grpo's. Degenerate case: a step in which no sample has a
solution has loss and gradient 0, or those of the policy loss alone.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ptapi import run_directory
from ptapi.spec import PostTrainJobSpec
from ptapi.spec import Sdpo as SdpoSpec
from pttrainer.algorithms import grpo
from pttrainer.algorithms.distillation import policy_term, teachers
from pttrainer.algorithms.on_policy import OnPolicyAlgorithm
from pttrainer.batch import Batch
from pttrainer.data import loss_weights
from pttrainer.data.distillation import privileged_context
from pttrainer.data.loss_weights import Mean, Metric
from pttrainer.data.prompts import Question
from pttrainer.losses import policy_gradient, policy_metrics
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.losses.divergence import DistillationStats, Teacher
from pttrainer.losses.loss_traits import BY_TOKEN, blends
from pttrainer.models import Model, Params
from pttrainer.rollout import groups
from pttrainer.rollout.context import Context
from pttrainer.rollout.evaluation import evaluator
from pttrainer.rollout.evaluation.evaluator import Evaluation
from pttrainer.rollout.groups import Group
from pttrainer.rollout.rollout_data import Rollout
from pttrainer.rollout.sampler import Sampler

FIELD = "spec.algorithm.sdpo"
_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)


def teacher_of(spec: SdpoSpec, student: Model) -> Teacher:
    """Return the comparison of the student with itself."""
    return Teacher(
        student,
        spec.beta,
        spec.top_k,
        self_weights=spec.teacher,
        top_of="student",
        sampled_token=spec.signal == "sampled-token",
        trains_logps=blends(spec),
    )


class Loss:
    """The divergence from the hindsight of the student, and the policy loss beside it (`Objective`).

    Without a share of the divergence there is no `teacher`.
    """

    teacher: Teacher
    teacher_params: Params
    entropy = True
    level = False
    by_token = BY_TOKEN["sdpo"]
    temperature = 1.0

    def __init__(self, spec: PostTrainJobSpec, teacher: Teacher, teacher_params: Params) -> None:
        assert spec.algorithm.sdpo is not None
        self._weight = spec.algorithm.sdpo.distillation_weight
        if self._weight > 0:
            self.teacher, self.teacher_params = teacher, teacher_params
        self._policy = None if self._weight == 1 else grpo.Loss(policy_term.job(spec))
        self._highest = spec.algorithm.sdpo.highest_ratio
        self._has_sampler_logps = spec.rollout.temperature == self.temperature

    def loss(self, stats: Any, batch: Batch) -> tuple[Array, dict[str, Metric]]:
        """Return each token's share of both losses, and metrics. `stats` are the teacher's, if there is one."""
        if self._policy is None:
            return self._distilled(stats, batch)
        loss_BT, metrics = self._policy.loss(TokenStats(stats.logps_BT, stats.entropy_BT), batch)
        metrics[run_directory.NLL] = Mean(-lax.stop_gradient(stats.logps_BT))
        if batch.divergence_share_BT is None:
            return loss_BT, metrics
        distilled_BT, _ = self._distilled(stats, batch)
        metrics["divergence"] = Mean(stats.divergence_BT, batch.divergence_share_BT)
        return (1.0 - self._weight) * loss_BT + batch.divergence_share_BT * distilled_BT, metrics

    def _distilled(self, stats: DistillationStats, batch: Batch) -> tuple[Array, dict[str, Metric]]:
        """Return each token's divergence times its weight, and metrics."""
        own_BT = lax.stop_gradient(stats.logps_BT)
        old_BT = policy_gradient.old_policy(own_BT, batch)
        loss_BT = stats.divergence_BT
        if self._highest is not None:
            loss_BT = loss_BT * clipped_weight(own_BT, old_BT, self._highest)
        metrics: dict[str, Metric] = {
            run_directory.NLL: Mean(-own_BT),
            run_directory.ENTROPY: Mean(stats.entropy_BT),
            "divergence": Mean(stats.divergence_BT),
        }
        if self._has_sampler_logps:  # else they are of a distribution with another temperature
            metrics |= policy_metrics.of_sampler(old_BT, jnp.asarray(batch.sampler_logps_BT), jnp.ones_like(own_BT))
        return loss_BT, metrics


def clipped_weight(logps_BT: Array, old_BT: Array, highest: float) -> Array:
    """Return min(w, c): how much more likely a token is than before the batch's first update, without gradient."""
    return lax.stop_gradient(jnp.minimum(jnp.exp(policy_gradient.log_ratio(logps_BT, old_BT)), highest))


class Sdpo(Loss, OnPolicyAlgorithm):
    """Batches from rollouts, with what the teacher reads before each sample."""

    temperature = Loss.temperature

    def __init__(
        self,
        context: Context,
        spec: SdpoSpec,
        teacher: tuple[Teacher, Params],
        train: list[Question],
        sampler: Sampler,
        evaluation: Evaluation | None,
    ) -> None:
        Loss.__init__(self, context.spec, *teacher)
        OnPolicyAlgorithm.__init__(self, context, train, sampler, evaluation)
        self._spec = spec
        if self._weight == 0:
            self.min_rewarded = 2  # as in grpo

    def expected_batch(self) -> Batch | None:
        """Return None: how long the teacher's prompts are depends on the samples."""
        return None

    def _lay_out(self, rollout: Rollout) -> Rollout:
        rewards_PG = groups.rewards(rollout.groups)
        solutions_PG = solutions(rewards_PG, self._spec.min_reward, own=self._spec.own_solution)
        has_solution_PG = solutions_PG >= 0
        learns_PG = has_solution_PG | (self._spec.feedback_context is not None)
        pad_id, length = self._context.tokenizer.pad_id, self._context.spec.training.sequence_length
        advantages_PG = learns_PG.astype(np.float64)
        if self._weight < 1:
            advantages_PG = policy_term.sample_advantages(self._spec, rewards_PG)
        batch = groups.lay_out(rollout.groups, advantages_PG, pad_id, length)
        batch = self._weighed(batch, batch.mask_BT * learns_PG.reshape(-1, 1).astype(np.float32))
        if self._weight > 0:
            batch = teachers.with_teacher_rows(batch, self._read_again(rollout.groups, solutions_PG), pad_id)
        facts = {
            "samples/taught": float(learns_PG.mean()),
            "samples/with_solution": float(has_solution_PG.mean()),
            "groups/solved": float((rewards_PG >= self._spec.min_reward).any(axis=1).mean()),
        }
        return rollout.laid_out(batch, advantages_PG, facts)

    def _weighed(self, batch: Batch, taught_BT: np.ndarray) -> Batch:
        """Return the batch with its mask and weights. taught_BT: its mask where samples learn from the teacher."""
        if self._weight == 1:
            return batch._replace(mask_BT=taught_BT, weight_BT=loss_weights.sequence_mean(taught_BT))
        weight_BT = policy_term.weights(self._spec, batch.mask_BT, self._sampling.max_new_tokens)
        batch = batch._replace(weight_BT=weight_BT)
        if self._weight == 0:
            return batch
        return batch._replace(divergence_share_BT=policy_term.divergence_share(taught_BT, weight_BT, self._weight))

    @property
    def _scores_old(self) -> bool:
        return self._updates > 1

    def _with_policy_terms(self, rollout: Rollout, params: Params) -> Rollout:
        """Add the log-probs before the first update, if there are several updates."""
        if self._updates == 1:
            return rollout
        return rollout.with_facts({}, old_logps_BT=self._logps(params, rollout.batch))

    def _read_again(self, sampled: Sequence[Group], solutions_PG: np.ndarray) -> list[Group]:
        """Return a group of one for each sample, with the teacher's prompt of that sample."""
        return [
            Group(
                replace(group.question, teacher_tokens=self._teacher_prompt(group, int(solution)))
                if solution >= 0 or self._spec.feedback_context is not None
                else replace(group.question, teacher_tokens=group.question.tokens),
                [sample],
            )
            for group, solutions_G in zip(sampled, solutions_PG, strict=True)
            for sample, solution in zip(group.samples, solutions_G, strict=True)
        ]

    def _teacher_prompt(self, group: Group, solution: int) -> Sequence[int]:
        """Return the prompt with the solution of this number; below 0 with feedback in its place."""
        text = ""
        if solution >= 0:
            text = group.samples[solution].text
            if self._spec.drop_thinking:
                text = _THINKING.sub("", text).strip()
        read = teacher_messages(self._spec, group.question, self._context.chat.without_specials(text), solution >= 0)
        return self._context.chat.prompt_ids(read, group.question.tools)


def teacher_messages(spec: SdpoSpec, question: Question, solution: str, has_solution: bool) -> Any:
    """Return what the teacher reads before a sample; raise DataError if the row lacks a column that it names."""
    if has_solution:
        extra, field = {"solution": solution}, f"{FIELD}.solutionContext"
        return privileged_context.messages(spec.solution_context, question, field, extra)
    assert spec.feedback_context is not None
    return privileged_context.messages(spec.feedback_context, question, f"{FIELD}.feedbackContext")


def solutions(rewards_PG: np.ndarray, min_reward: float, *, own: bool) -> np.ndarray:
    """Return for each sample the number of the first good one of its prompt, −1 without one.

    own: a sample may be its own. A missing reward is NaN and no good one.
    """
    is_good_PG = rewards_PG >= min_reward
    G = rewards_PG.shape[1]
    eligible_PGG = np.repeat(is_good_PG[:, None, :], G, axis=1)
    if not own:
        eligible_PGG &= ~np.eye(G, dtype=bool)
    return np.where(eligible_PGG.any(axis=2), eligible_PGG.argmax(axis=2), -1)


def build(context: Context) -> Sdpo:
    """Read the prompts and load the rewards. Raises ConfigError, DataError or UserCodeError."""
    spec = context.spec.algorithm.sdpo
    assert spec is not None
    sampler = evaluator.job_sampler(context)
    train = evaluator.read_questions(context, "train", sampler)
    for question in train:  # a column that is missing is found before the first sample
        teacher_messages(spec, question, "", has_solution=True)
        if spec.feedback_context is not None:
            teacher_messages(spec, question, "", has_solution=False)
    teacher = teacher_of(spec, context.model)
    holds_initial = spec.teacher == "initial" and spec.distillation_weight > 0
    params = context.model.trained(context.initial_params()) if holds_initial else {}
    return Sdpo(context, spec, (teacher, params), train, sampler, evaluator.evaluation(context, sampler))
