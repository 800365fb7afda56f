"""Distillation: the student learns to predict as a frozen teacher does.

    loss = Σ_t m_t · D_β(teacher(· | x_<t), student(· | x_<t)) / Σ m        sums over the whole optimizer step

D_β is the generalised Jensen-Shannon divergence (`divergence`), m is 1 on completion tokens. What x is:

    offline     the data's completions, with the teacher's likeliest tokens and their log-probs in the data
    online      the data's completions: supervised distillation
    on-policy   the student's own completions of the data's prompts (GKD, arXiv 2306.13649): it learns from its own
                mistakes. With `studentShare` λ < 1 a step is on-policy with probability λ, else online, as GKD mixes.

Samples are drawn at the rollout's temperature and no gradient flows through the drawing, as in the paper; the
divergence is that of the plain predictions. A teacher of its own is sharded over the same devices, in the compute
format, and runs inside the step, one micro-batch at a time: its hidden states are all that is kept.

With `selfTeacher` the teacher is the student, on-policy: as it was before the first step (OPSD, arXiv 2601.18734), its
moving average (SDFT, 2601.19897), or as it is. `privilegedContext` puts into its prompt what the student is not told;
the student's completion follows, and both are compared where they predict the same token of it.

What is left out: teachers with other tokenizers, teachers behind a server, a self-teacher for the data's completions, a
correction for samples of older weights (`rollout.maxStaleness`), because what the teacher says of a completion is true
of it whoever said it. Degenerate case: a student that is its teacher, and is told the same, has loss and gradient 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array

from ptapi import run_directory
from ptapi.spec import Distill as DistillSpec
from pttrainer.algorithms import sft, teachers
from pttrainer.batch import Batch
from pttrainer.data import loss_weights
from pttrainer.data.batching import Batches, PackedRows, in_order
from pttrainer.data.loss_weights import Mean, Metric, perplexity
from pttrainer.data.prompts import Question
from pttrainer.losses.distillation import Guide, GuidedStats, Hearsay
from pttrainer.losses.loss_traits import BY_TOKEN
from pttrainer.models import Model, Params
from pttrainer.rollout import groups
from pttrainer.rollout.context import Context
from pttrainer.rollout.disaggregated.async_pipeline import Drawn, Pipeline
from pttrainer.rollout.evaluation import evaluator
from pttrainer.rollout.evaluation.evaluator import Evaluation
from pttrainer.rollout.prompt_stream import Deck
from pttrainer.rollout.sampler import Sampler, sampling_of
from pttrainer.train_step.optimizer.total_steps import total_steps


class Loss:
    """The divergence from a guide (`Objective`). teacher: the guide's weights."""

    temperature = 1.0
    entropy = True
    level = False
    by_token = BY_TOKEN["distill"]

    def __init__(self, guide: Guide | Hearsay, teacher: Params) -> None:
        self.guide, self.teacher = guide, teacher

    def loss(self, stats: Any, batch: Batch) -> tuple[Array, dict[str, Metric]]:
        """The divergence of each token. `stats` are the guide's (`GuidedStats`)."""
        return stats.divergence_BT, {
            run_directory.NLL: Mean(-stats.logps_BT),
            run_directory.ENTROPY: Mean(stats.entropy_BT),
        }


class Distill(Loss):
    """Batches from the data or from the student; the teacher's predictions as targets."""

    def __init__(
        self,
        context: Context,
        spec: DistillSpec,
        taught: tuple[Guide | Hearsay, Params],
        given: PackedRows | None,
        asked: tuple[list[Question], Sampler] | None,
        held_out: list[Batch],
        evaluation: Evaluation | None,
    ) -> None:
        super().__init__(*taught)
        training = context.spec.training
        self._context, self._evaluation, self._held_out = context, evaluation, held_out
        self._compare = jax.jit(partial(_compare, self.guide, context.model))
        self._given = None if given is None else Batches(given, training.batch_size, training.seed)
        self._deck: Deck | None = None
        if asked is not None:
            self._deck = Deck(*asked, sampling_of(context.spec), training.seed, training.batch_size, 1)
        self._share = spec.student_share if asked is not None else 0.0
        rows = len(asked[0]) if asked is not None else len(given or [])
        self.total_steps = total_steps(training, rows, training.batch_size)
        bound = context.spec.rollout.max_staleness
        self._ahead = Pipeline(bound, self.total_steps, self._is_on_policy, context.deliver, self._roll_out)
        self.needs_params = asked is not None

    def next_batch(self, step: int, params: Params) -> tuple[Batch, Mapping[str, float]]:
        """A step's completions come from the student or from the data."""
        if self._given is not None and not self._is_on_policy(step):
            self._ahead.give(step, params)
            return next(self._given), {}
        drawn = self._ahead.next(step, params)
        self._context.save_samples(step + 1, drawn.table)
        return drawn.batch, drawn.facts

    def foreseen(self) -> Batch | None:
        """As all batches from the data are; how long the student's completions become, nobody knows."""
        return None if self._given is None or self._is_on_policy(0) else self._given.foreseen()

    def evaluate(self, step: int, params: Params) -> Mapping[str, float]:
        """Divergence and perplexity on held-out completions, and rewards of greedy ones if asked for."""
        divergence, nll, count = 0.0, 0.0, 0.0
        for batch in self._held_out:
            stats = self._context.fetch(self._compare(params, self.teacher, self._context.place(batch)))
            divergence += float(stats.divergence_BT.sum(dtype="float64"))
            nll -= float(stats.logps_BT.sum(dtype="float64"))
            count += float(batch.mask_BT.sum(dtype="float64"))
        rewards = {} if self._evaluation is None else self._evaluation.run(self._ahead.at_rest(params))
        if not count:
            return rewards
        return {run_directory.EVAL_LOSS: divergence / count, "eval/perplexity": perplexity(nll / count), **rewards}

    def state(self) -> dict[str, Any]:
        """Prompts drawn, batches drawn ahead, and the position in the data."""
        ahead = self._ahead.state()  # first: it waits for what still draws prompts
        given = None if self._given is None else self._given.state()
        return {"drawn": 0 if self._deck is None else self._deck.drawn, "given": given, "ahead": ahead}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        if self._deck is not None:
            self._deck.drawn = int(state["drawn"])
        if self._given is not None:
            self._given.restore(state["given"])
        self._ahead.restore(state.get("ahead", ()))  # checkpoints of before there was any have none

    def _is_on_policy(self, step: int) -> bool:
        """A coin that (seed, step) tosses, where there are both kinds of completions."""
        if self._given is None or self._deck is None:
            return self._deck is not None
        coin: float = np.random.default_rng((self._context.spec.training.seed, step)).random()
        return coin < self._share

    def _roll_out(self, step: int, weights: Params) -> Drawn:
        assert self._deck is not None
        judged = self._deck.draw(step, weights)
        advantages_P1 = np.zeros((len(judged.groups), 1))
        pad_id, length = self._context.tokenizer.pad_id, self._context.spec.training.sequence_length
        laid = groups.lay_out(judged.groups, advantages_P1, pad_id, length)
        batch = laid._replace(
            advantages_BT=None, sampler_logps_BT=None, weight_BT=loss_weights.token_mean(laid.mask_BT)
        )
        if judged.groups[0].question.teacher_tokens:
            batch = teachers.with_teacher(batch, judged.groups, pad_id)
        table = groups.table(step + 1, judged.groups, advantages_P1, groups.MAX_TABLE_ROWS)
        facts = {**groups.facts(judged.groups), **judged.facts, "seconds/generate": judged.generate_s}
        return Drawn(batch, facts, table)


def build(context: Context) -> Distill:
    """Reads the data and the teacher; raises ConfigError or DataError."""
    spec = context.spec.algorithm.distill
    assert spec is not None
    on_policy, told = spec.mode == "on-policy", spec.mode == "offline"
    taught = teachers.taught(context, spec)
    given = None
    if not on_policy or spec.student_share < 1.0:
        given = sft.read_rows(context, "train", learn_prompt=False, pack=True, told=told)
    asked = None
    sampler = evaluator.job_sampler(context) if on_policy or context.spec.rewards else None
    if on_policy and sampler is not None:
        questions = evaluator.read_questions(context, "train", sampler)
        asked = (teachers.told(context, spec.self_teacher, questions), sampler)
    judged = evaluator.evaluation(context, sampler) if sampler is not None and context.spec.rewards else None
    rows = None if spec.self_teacher else sft.read_rows(context, "eval", learn_prompt=False, pack=True, told=told)
    batches = [] if rows is None else in_order(rows, context.rows_at_once(len(rows)))
    return Distill(context, spec, taught, given, asked, batches, judged)


def _compare(guide: Guide | Hearsay, student: Model, params: Params, teacher: Params, batch: Batch) -> GuidedStats:
    hidden_BTD = student.forward(params, batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT)
    return guide.stats(teacher, student, hidden_BTD, student.head(params), batch)
