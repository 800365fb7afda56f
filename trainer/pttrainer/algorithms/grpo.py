"""Group-relative policy optimisation (arXiv 2402.03300) and its relatives.

A step draws P prompts, samples G completions of each, judges them, and turns the rewards of a group into
advantages (`advantages`). The loss of a token is

    policy loss (`policy_loss`) · min(exp(old − sampler), 2)  +  β · KL(policy ‖ reference)

reduced as the variant's paper says, with weights from the mask of the whole step. With `updatesPerBatch` = μ,
μ optimizer steps use the same samples; `old` log-probs are then computed once, before the first of them.

With `rollout.maxStaleness` the samples are of older weights (`rollout.pipeline`); `old` is still the policy at the
first update, so the second factor corrects for them, too. Degenerate case: with μ = 1 the ratio is 1 everywhere, the
loss is about 0 and says nothing; watch reward, entropy and gradient norm.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ptapi import rundir
from ptapi.spec import Grpo as GrpoSpec
from ptapi.spec import PostTrainJobSpec
from pttrainer import advantages
from pttrainer.algorithms import policy_loss, policy_metrics
from pttrainer.algorithms.protocol import Context
from pttrainer.algorithms.traits import by_token
from pttrainer.batch import Batch
from pttrainer.data.prompts import Order, Question
from pttrainer.losses import TokenStats
from pttrainer.models import Params
from pttrainer.reduce import Mean, Metric
from pttrainer.rollout import groups, held_out, saved, sharing
from pttrainer.rollout.groups import Group, Sample
from pttrainer.rollout.held_out import Evaluation
from pttrainer.rollout.pipeline import Drawn, Pipeline
from pttrainer.rollout.protocol import Draw
from pttrainer.rollout.sampling import Judged, Sampler, reward_facts, training_sampling


class Loss:
    """The policy loss that the spec names (`Objective`)."""

    entropy = True
    level = False

    def __init__(self, spec: PostTrainJobSpec) -> None:
        assert spec.algorithm.grpo is not None
        self._spec = spec.algorithm.grpo
        self._variant = policy_loss.VARIANTS[self._spec.loss]
        self._clip = _clip(self._spec, self._variant.clip)
        self.by_token = by_token(spec.algorithm)
        self.temperature = spec.rollout.temperature

    def loss(self, stats: TokenStats, batch: Batch) -> tuple[Array, dict[str, Metric]]:
        """Policy loss with importance correction, and the pull towards the reference."""
        logps_BT, mask_BT = stats.logps_BT, batch.mask_BT
        old_BT = lax.stop_gradient(logps_BT) if batch.old_logps_BT is None else batch.old_logps_BT
        loss_BT, ratio_BT = self._variant.loss(logps_BT, old_BT, batch.advantages_BT, mask_BT, self._clip)
        importance_BT = policy_loss.truncated_importance(old_BT, batch.sampler_logps_BT)
        loss_BT = loss_BT * importance_BT
        metrics = policy_metrics.of_ratio(
            ratio_BT, batch.advantages_BT, self._clip, cuts_weight=self._variant.cuts_weight
        )
        metrics |= policy_metrics.of_sampler(old_BT, batch.sampler_logps_BT, importance_BT)
        metrics[rundir.ENTROPY] = Mean(stats.entropy_BT)
        if batch.ref_logps_BT is not None:
            token_ratio_BT = jnp.exp(policy_loss.log_ratio(logps_BT, old_BT))
            pull_BT = policy_loss.kl(self._spec.kl, logps_BT, batch.ref_logps_BT, token_ratio_BT)
            loss_BT = loss_BT + self._spec.beta * pull_BT
            metrics[rundir.KL] = Mean(policy_loss.k3(logps_BT, batch.ref_logps_BT))
        return loss_BT, metrics


class Grpo(Loss):
    """Batches from rollouts."""

    needs_params = True

    def __init__(
        self,
        context: Context,
        spec: GrpoSpec,
        train: list[Question],
        sampler: Sampler,
        evaluation: Evaluation | None,
        shared: int | None = None,
    ) -> None:
        """shared: slots of prompts that stand once for all of their samples (`rollout.sharing`)."""
        super().__init__(context.spec)
        training = context.spec.training
        self._context, self._train = context, train
        self._sampler, self._evaluation = sampler, evaluation
        self._advantages = advantages.ESTIMATORS[spec.advantage or self._variant.advantage]
        self._sampling = training_sampling(context)
        self._order = Order(len(train), training.seed)
        self._prompts = training.batch_size // spec.group_size
        self._shared = shared
        self._reference: Params | None = context.initial_params() if spec.beta > 0 else None
        self._drawn = 0
        self._batch: Batch | None = None
        self._facts: dict[str, float] = {}
        rollouts = math.ceil((training.epochs or 1.0) * len(train) / self._prompts)
        self.total_steps = training.steps or rollouts * spec.updates_per_batch
        bound = context.spec.rollout.max_staleness
        self._ahead = Pipeline(bound, self.total_steps, self._is_first_update, context.deliver, self._roll_out)

    def next_batch(self, step: int, params: Params) -> tuple[Batch, Mapping[str, float]]:
        """A new rollout, or, within its μ updates, the same batch again."""
        if self._batch is None or self._is_first_update(step):
            self._batch, self._facts = self._take(step, params)
            return self._batch, self._facts
        # What the samples are is true of every update, what they took only of the one that drew them.
        return self._batch, {name: value for name, value in self._facts.items() if not rundir.is_of_machine(name)}

    def evaluate(self, step: int, params: Params) -> Mapping[str, float]:
        """Rewards of greedy completions."""
        if self._evaluation is None:
            return {}
        self._ahead.wait()
        return self._evaluation.run(params if self._context.deliver is None else self._context.deliver(params))

    def state(self) -> dict[str, Any]:
        """Prompts drawn so far, the rollout while it is still in use, and those that were drawn ahead."""
        in_use = self._batch if self._spec.updates_per_batch > 1 else None
        ahead = self._ahead.state()  # first: it waits for what still draws prompts
        batch = None if in_use is None else saved.to_json(in_use)
        return {"drawn": self._drawn, "batch": batch, "facts": self._facts, "ahead": ahead}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._drawn = int(state["drawn"])
        self._batch = None if state["batch"] is None else saved.from_json(state["batch"])
        self._facts = dict(state["facts"])
        self._ahead.restore(state["ahead"])

    def _is_first_update(self, step: int) -> bool:
        return step % self._spec.updates_per_batch == 0

    def _take(self, step: int, params: Params) -> tuple[Batch, dict[str, float]]:
        """The rollout of this step, with what the policy and the reference think of it now."""
        drawn = self._ahead.next(step, params)
        started = time.monotonic()
        batch, reference_s = self._with_scores(drawn.batch, params)
        self._context.save_samples(step + 1, drawn.table)
        return batch, {
            **drawn.facts,
            "seconds/score": time.monotonic() - started,
            **({} if self._reference is None else {"seconds/reference": reference_s}),
        }

    def _roll_out(self, step: int, weights: Params) -> Drawn:
        """Samples and what follows from them alone. weights: wherever they sample."""
        judged, replaced = self._collect(step, weights)
        rewards_PG = groups.rewards(judged.groups)
        advantages_PG = self._advantages(rewards_PG)
        sampled = sum(sample.length for group in judged.groups for sample in group.samples)
        facts = {
            **reward_facts(judged.groups),
            **groups.facts(judged.groups),
            **_group_facts(rewards_PG, advantages_PG),
            **({} if self._spec.dynamic_sampling is None else {"groups/replaced": float(replaced)}),
            **judged.facts,
            "seconds/generate": judged.generate_s,
            "seconds/reward": judged.reward_s,
            "sampled_tokens_per_second": sampled / judged.generate_s,
        }
        table = groups.table(step + 1, judged.groups, advantages_PG, groups.MAX_TABLE_ROWS)
        return Drawn(self._lay_out(judged.groups, advantages_PG), facts, table)

    def _collect(self, step: int, params: Params) -> tuple[Judged, int]:
        """Judged groups; with dynamic sampling, groups without spread are replaced as long as tries last."""
        judged = self._draw(step, params)
        tries = 0 if self._spec.dynamic_sampling is None else self._spec.dynamic_sampling.max_tries
        found, replaced = judged.groups, 0
        for _ in range(tries):
            flat = np.flatnonzero(~advantages.has_spread(groups.rewards(found)))
            if not flat.size:
                break
            more = self._draw(step, params)
            spread = advantages.has_spread(groups.rewards(more.groups))
            fresh = [group for group, has_spread in zip(more.groups, spread, strict=True) if has_spread]
            for place, group in zip(flat, fresh, strict=False):
                found[place] = group
                replaced += 1
            judged = Judged(
                found, judged.generate_s + more.generate_s, judged.reward_s + more.reward_s, judged.beside(more)
            )
        return judged, replaced

    def _draw(self, step: int, params: Params) -> Judged:
        """The next prompts, sampled and judged. A prompt's number is its place in the whole run's order."""
        numbers = list(range(self._drawn, self._drawn + self._prompts))
        self._drawn += self._prompts
        questions = [self._train[self._order[number]] for number in numbers]
        draw = Draw(self._context.spec.training.seed, step)
        judged = self._sampler.sample(params, questions, numbers, self._spec.group_size, self._sampling, draw)
        if self._spec.overlong is None:
            return judged
        limit, buffer = self._sampling.max_new_tokens, self._spec.overlong.buffer_tokens
        return replace(judged, groups=[_punished(group, limit, buffer) for group in judged.groups])

    def _lay_out(self, found: list[Group], advantages_PG: np.ndarray) -> Batch:
        length = self._context.spec.training.sequence_length
        batch = groups.lay_out(found, advantages_PG, self._context.tokenizer.pad_id, length, self._shared)
        environment = self._context.spec.environment
        most = self._sampling.max_new_tokens * (1 if environment is None else environment.max_turns)
        return batch._replace(weight_BT=self._variant.weights(batch.mask_BT, most))

    def _with_scores(self, batch: Batch, params: Params) -> tuple[Batch, float]:
        """Log-probs that the loss compares with, where it needs any; and the seconds that the reference took."""
        if self._spec.updates_per_batch > 1:
            batch = batch._replace(old_logps_BT=self._score(params, batch))
        began = time.monotonic()
        if self._reference is not None:
            batch = batch._replace(ref_logps_BT=self._score(self._reference, batch))
        return batch, time.monotonic() - began

    def _score(self, params: Params, batch: Batch) -> Any:
        return self._context.score(params, batch, self.temperature).logps_BT


def build(context: Context) -> Grpo:
    """Reads prompts and loads rewards; raises ConfigError, DataError or UserCodeError."""
    spec = context.spec.algorithm.grpo
    assert spec is not None
    sampler = held_out.job_sampler(context)
    train = held_out.read_questions(context, context.spec.data.train, "spec.data.train", sampler)
    longest = max(len(question.tokens) for question in train)
    shared = sharing.prompt_slots(context, longest, spec.group_size)
    return Grpo(context, spec, train, sampler, held_out.evaluation(context, sampler), shared)


def _clip(spec: GrpoSpec, paper: policy_loss.Clip) -> policy_loss.Clip:
    low = paper.low if spec.clip_low is None else spec.clip_low
    return policy_loss.Clip(low, paper.high if spec.clip_high is None else spec.clip_high, spec.dual_clip)


def _punished(group: Group, limit: int, buffer: int) -> Group:
    """DAPO's soft overlong penalty: 0 up to `limit − buffer` tokens, then linearly to −1 at `limit`."""

    def punished(sample: Sample) -> Sample:
        over = max(sample.length - (limit - buffer), 0)
        return sample._replace(reward=sample.reward - min(over / buffer, 1.0))

    return group._replace(samples=[punished(sample) for sample in group.samples])


def _group_facts(rewards_PG: np.ndarray, advantages_PG: np.ndarray) -> dict[str, float]:
    spread = advantages.zero_spread(rewards_PG)
    return {
        "groups/all_right": spread.all_right / spread.groups,
        "groups/all_wrong": spread.all_wrong / spread.groups,
        "groups/dropped": float((~advantages.has_spread(rewards_PG)).mean()),
        "advantage/mean": float(advantages_PG.mean()),
        "advantage/std": float(advantages_PG.std()),
        "advantage/min": float(advantages_PG.min()),
        "advantage/max": float(advantages_PG.max()),
    }
