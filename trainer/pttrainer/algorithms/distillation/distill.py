"""Distillation: the student learns to predict as a frozen teacher does.

    loss = Σ_t m_t · D_β(teacher(· | x_<t), student(· | x_<t)) / Σ m        sums over the whole optimizer step

D_β is the generalised Jensen-Shannon divergence (`losses.divergence`), m is 1 on completion tokens. The source of x:

    offline     the data's completions, with the teacher's most likely tokens and their log-probs in the data
    online      the data's completions: supervised distillation
    on-policy   the student's own completions of the data's prompts (GKD, arXiv 2306.13649): it learns from its own
                mistakes. With `studentShare` λ < 1 a step is on-policy with probability λ, else online, as GKD mixes.

Samples are drawn at the rollout's temperature and no gradient flows through the sampling, as in the paper; the
divergence is that of the plain predictions. A separate teacher is sharded over the same devices, in the compute format,
and runs inside the step, one micro-batch at a time: only its hidden states are kept. One behind a service of the job
(`served_teacher`) is asked for its K likeliest tokens once a batch's completions are there; the batch then is as one of
offline data, and so is its loss.

With `selfTeacher` the teacher is the student, on-policy: as before the first step (OPSD, arXiv 2601.18734), its moving
average (SDFT, 2601.19897), or as it is. `privilegedContext` adds to its prompt what the student does not see; the
student's completion follows, and both are compared where they predict the same token of it.

Left out: teachers with other tokenizers, images and whole vocabularies behind a service, a self-teacher for the data's
completions, and a correction for samples of older weights (`rollout.maxStaleness`): the teacher's prediction for a
completion holds whoever sampled it. Degenerate case: a student that is its own teacher with the same prompt has loss
and gradient 0.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

import jax
import numpy as np
from jax import Array

from ptapi import run_directory
from ptapi.spec import Distill as DistillSpec
from pttrainer.algorithms import sft
from pttrainer.algorithms.algorithm import Call
from pttrainer.algorithms.distillation import teachers
from pttrainer.algorithms.distillation.served_teacher import ServedTeacher
from pttrainer.batch import Batch
from pttrainer.data import loss_weights
from pttrainer.data.batching import Batches, PackedRows, in_order
from pttrainer.data.loss_weights import Mean, Metric, perplexity
from pttrainer.data.prompts import Question
from pttrainer.losses.divergence import DistillationStats, OfflineTeacher, Teacher
from pttrainer.losses.loss_traits import BY_TOKEN
from pttrainer.models import Model, Params
from pttrainer.rollout import groups
from pttrainer.rollout.context import Context
from pttrainer.rollout.disaggregated import finished_rollouts
from pttrainer.rollout.disaggregated.async_pipeline import Pipeline
from pttrainer.rollout.engine import SamplerWeights
from pttrainer.rollout.evaluation import evaluator
from pttrainer.rollout.evaluation.evaluator import Evaluation
from pttrainer.rollout.rollout_data import Rollout
from pttrainer.rollout.rollout_metrics import completion_facts
from pttrainer.rollout.sampler import PromptStream, Sampler, sampling_of
from pttrainer.runtime.background_compile import EarlyFunction
from pttrainer.runtime.distributed import sharding
from pttrainer.train_step.optimizer.transformation import total_steps

TEACHER_SECONDS = f"{run_directory.SECONDS}teacher"


class Loss:
    """The divergence from a teacher (`Objective`)."""

    temperature = 1.0
    entropy = True
    level = False
    by_token = BY_TOKEN["distill"]

    def __init__(self, teacher: Teacher | OfflineTeacher, teacher_params: Params) -> None:
        self.teacher, self.teacher_params = teacher, teacher_params

    def loss(self, stats: Any, batch: Batch) -> tuple[Array, dict[str, Metric]]:
        """Return the divergence of each token, and metrics. `stats` are the teacher's (`DistillationStats`)."""
        return stats.divergence_BT, {
            run_directory.NLL: Mean(-stats.logps_BT),
            run_directory.ENTROPY: Mean(stats.entropy_BT),
        }


class Distill(Loss):
    """Batches from the data or from the student, with the teacher's predictions as targets."""

    def __init__(
        self,
        context: Context,
        spec: DistillSpec,
        teacher: tuple[Teacher | OfflineTeacher, Params],
        data_rows: PackedRows | None,
        prompts: tuple[list[Question], Sampler] | None,
        held_out: Iterable[Batch],
        evaluation: Evaluation | None,
        served: ServedTeacher | None = None,
    ) -> None:
        super().__init__(*teacher)
        training, self._served = context.spec.training, served
        self._context, self.evaluation = context, evaluation
        self._untaught, self._held_out = held_out, held_out if served is None else served.taught_once(held_out)
        self._compare = EarlyFunction(jax.jit(partial(_compare, self.teacher, context.model)))
        self._data_batches = None if data_rows is None else Batches(data_rows, training.batch_size, training.seed)
        self._prompt_stream: PromptStream | None = None
        kept: Any = (self._roll_out,)
        if prompts is not None:
            self._prompt_stream = PromptStream(
                *prompts, sampling_of(context.spec), training.seed, training.batch_size, 1
            )
            kept = finished_rollouts.kept(context.finished, self._prompt_stream, self._roll_out)
        self._student_share = spec.student_share if prompts is not None else 0.0
        rows = len(prompts[0]) if prompts is not None else len(data_rows or [])
        self.total_steps = total_steps(training, rows, training.batch_size)
        bound = context.spec.rollout.max_staleness
        self._pipeline = Pipeline(bound, self.total_steps, self._is_on_policy, context.deliver, *kept)
        self.needs_params = prompts is not None

    def next_batch(self, step: int, params: Params) -> tuple[Batch, Mapping[str, float]]:
        """Return a step's batch, with completions of the student or from the data."""
        if self._data_batches is not None and not self._is_on_policy(step):
            return self._of_data(step, params)
        rollout = self._pipeline.next(step, params)
        self._context.save_samples(step + 1, rollout.table)
        return rollout.batch, rollout.facts

    def expected_batch(self) -> Batch | None:
        """Return the shape of batches from the data; the length of the student's completions is unknown."""
        if self._data_batches is None or self._is_on_policy(0):
            return None
        batch = self._data_batches.foreseen()
        return batch if self._served is None else self._served.unfilled(batch)

    def expected_calls(self, params: Params, *, held_out: bool) -> Iterator[Call]:
        """Yield the comparison of the first held-out batch; all have its shapes, but for images."""
        for batch in islice(self._untaught, 1 if held_out else 0):
            taught = batch if self._served is None else self._served.unfilled(batch)
            yield Call(self._compare, (params, self.teacher_params, sharding.batch_shapes(self._context.mesh, taught)))

    def evaluate(self, params: Params) -> Mapping[str, float]:
        """Return divergence and perplexity on held-out completions, and rewards of greedy ones if requested."""
        divergence, nll, count = 0.0, 0.0, 0.0
        self._wait_for_messages()
        for batch in self._held_out:
            stats = self._context.fetch(self._compare(params, self.teacher_params, self._context.place(batch)))
            divergence += float(stats.divergence_BT.sum(dtype="float64"))
            nll -= float(stats.logps_BT.sum(dtype="float64"))
            count += float(batch.mask_BT.sum(dtype="float64"))
        rewards = {} if self.evaluation is None else self.evaluation.run(self._pipeline.when_idle(params))
        if not count:
            return rewards
        return {run_directory.EVAL_LOSS: divergence / count, "eval/perplexity": perplexity(nll / count), **rewards}

    def state(self) -> dict[str, Any]:
        """Return the prompts drawn, the batches drawn ahead, and the position in the data."""
        pending = self._pipeline.state()  # first: it waits for what still draws prompts
        data_rows = None if self._data_batches is None else self._data_batches.state()
        return {
            "drawn": 0 if self._prompt_stream is None else self._prompt_stream.drawn,
            "given": data_rows,
            "ahead": pending,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        if self._prompt_stream is not None:
            self._prompt_stream.drawn = int(state["drawn"])
        if self._data_batches is not None:
            self._data_batches.restore(state["given"])
        self._pipeline.restore(state.get("ahead", ()))  # older checkpoints have none

    def _is_on_policy(self, step: int) -> bool:
        """Toss a coin that depends on (seed, step), if there are both kinds of completions."""
        if self._data_batches is None or self._prompt_stream is None:
            return self._prompt_stream is not None
        coin: float = np.random.default_rng((self._context.spec.training.seed, step)).random()
        return coin < self._student_share

    def _of_data(self, step: int, params: Params) -> tuple[Batch, Mapping[str, float]]:
        """Return a batch from the data, and start those that are sampled ahead."""
        assert self._data_batches is not None
        batch, facts = next(self._data_batches), {}
        if self._served is not None:
            self._wait_for_messages()
            batch, facts[TEACHER_SECONDS] = self._served.taught(batch)
        self._pipeline.start_batches(step, params)
        return batch, facts

    def _wait_for_messages(self) -> None:
        """Wait until no other thread sends what processes must read in one order: samples, or the teacher's answers."""
        if self._served is not None and self._context.messages is not None:
            self._pipeline.wait()

    def _roll_out(self, step: int, weights: SamplerWeights) -> Rollout:
        assert self._prompt_stream is not None
        rollout = self._prompt_stream.draw(step, weights)
        advantages_P1 = np.zeros((len(rollout.groups), 1))
        pad_id, length = self._context.tokenizer.pad_id, self._context.spec.training.sequence_length
        batch = groups.lay_out(rollout.groups, advantages_P1, pad_id, length)
        batch = batch._replace(
            advantages_BT=None, sampler_logps_BT=None, weight_BT=loss_weights.token_mean(batch.mask_BT)
        )
        if rollout.groups[0].question.teacher_tokens:
            batch = teachers.with_teacher_rows(batch, rollout.groups, pad_id)
        facts = completion_facts(rollout.groups)
        if self._served is not None:
            batch, facts[TEACHER_SECONDS] = self._served.taught(batch)
        return rollout.laid_out(batch, advantages_P1, facts)


def build(context: Context) -> Distill:
    """Read the data and load the teacher. Raises ConfigError or DataError."""
    spec = context.spec.algorithm.distill
    assert spec is not None
    on_policy, with_teacher_logps = spec.mode == "on-policy", spec.mode == "offline"
    service = spec.teacher_service
    served = None if service is None else ServedTeacher(context, service, spec.top_k)
    teacher = teachers.load_teacher(context, spec)
    data_rows = None
    if not on_policy or spec.student_share < 1.0:
        data_rows = sft.read_rows(
            context, "train", learn_prompt=False, pack=True, with_teacher_logps=with_teacher_logps
        )
    prompts = None
    sampler = evaluator.job_sampler(context) if on_policy or context.spec.rewards else None
    if on_policy and sampler is not None:
        questions = evaluator.read_questions(context, "train", sampler)
        prompts = (teachers.with_privileged_context(context, spec.self_teacher, questions), sampler)
    evaluation = evaluator.evaluation(context, sampler) if sampler is not None and context.spec.rewards else None
    rows = (
        None
        if spec.self_teacher
        else sft.read_rows(context, "eval", learn_prompt=False, pack=True, with_teacher_logps=with_teacher_logps)
    )
    held_out: Iterable[Batch] = [] if rows is None else in_order(rows, context.rows_at_once(len(rows)))
    return Distill(context, spec, teacher, data_rows, prompts, held_out, evaluation, served)


def _compare(
    teacher: Teacher | OfflineTeacher, student: Model, params: Params, teacher_params: Params, batch: Batch
) -> DistillationStats:
    hidden_BTD = student.forward(params, batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT)
    return teacher.stats(teacher_params, student, hidden_BTD, student.head(params), batch)
