"""Kahneman-Tversky optimisation (arXiv 2402.01306): answers labelled good or bad; `losses.unpaired_preference`.

A row of the batch is one answer, and becomes one number, the sum of its log-probs, as in `dpo`:

    loss = 1/B · Σ_answers λ·(1 − σ(±β·(π − ref − z)))

z estimates how far the policy is from the reference: the mean log-ratio of prompts with answers to other prompts, at
least 0. It is computed before the step, of all rows of the step, so micro-batches and devices do not change it; that is
a forward pass beside the step's own. Each prompt's other answer is that of the row before it in the first epoch's order
and stays the same, so the reference's log-probs are numbers that are computed once, by the first weights, and kept.

Left out: packing, a reference that moves. Degenerate case: in the first step every loss is λ/2, whatever the data.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from ptapi import run_directory
from ptapi.spec import PostTrainJobSpec
from pttrainer.batch import Batch
from pttrainer.checkpoint import batch_json
from pttrainer.data import rows
from pttrainer.data.loss_weights import Metric, RowMean
from pttrainer.data.preferences import unpaired
from pttrainer.data.preferences.pairs import answers_batch
from pttrainer.data.preferences.unpaired import LabelledAnswers
from pttrainer.data.prompts import Order
from pttrainer.data.sft_examples import Example
from pttrainer.errors import DataError
from pttrainer.losses import unpaired_preference
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.losses.loss_traits import BY_TOKEN
from pttrainer.losses.unpaired_preference import Coefficients
from pttrainer.models import Params
from pttrainer.rollout.context import Context
from pttrainer.rollout.evaluation.evaluator import Evaluation, evaluation, job_sampler
from pttrainer.train_step.optimizer.transformation import total_steps


class Loss:
    """The loss of labelled answers that the spec names (`Objective`)."""

    temperature = 1.0
    entropy = False
    level = False
    by_token = BY_TOKEN["kto"]

    def __init__(self, spec: PostTrainJobSpec) -> None:
        assert spec.algorithm.kto is not None
        kto = spec.algorithm.kto
        self._needs_kl = kto.loss == "kto"
        self._coefficients = Coefficients(kto.beta, kto.desirable_weight, kto.undesirable_weight)

    def loss(self, stats: TokenStats, batch: Batch) -> tuple[Array, dict[str, Metric]]:
        """Return the answer's loss on every token of its row; the weights pick one of them."""
        sums_B = jnp.sum(stats.logps_BT, axis=1)
        columns = (batch.ref_sums_B1, batch.desirable_B1, batch.kl_B1)
        # Preflight compiles the step for a batch without them.
        columns_B = (jnp.zeros_like(sums_B) if x is None else jnp.asarray(x)[:, 0] for x in columns)
        loss_B, facts = self._of_answers(sums_B, *columns_B)
        return jnp.broadcast_to(loss_B[:, None], batch.mask_BT.shape), dict(facts)

    def _of_answers(
        self, logps_B: Array, ref_B: Array, desirable_B: Array, kl_B: Array
    ) -> tuple[Array, dict[str, RowMean]]:
        """Return loss and metrics per answer. Rewards are implicit: β times the log-ratio to the reference."""
        ratio_B, bad_B = logps_B - ref_B, 1.0 - desirable_B
        loss_B = unpaired_preference.loss(ratio_B, desirable_B, kl_B, self._coefficients)
        reward_B, is_above_B = self._coefficients.beta * ratio_B, ratio_B > kl_B
        return loss_B, {
            "rewards/chosen": RowMean(reward_B, desirable_B),
            "rewards/rejected": RowMean(reward_B, bad_B),
            "rewards/accuracies": RowMean((is_above_B == (desirable_B > 0)).astype(jnp.float32)),
            "logps/chosen": RowMean(logps_B, desirable_B),
            "logps/rejected": RowMean(logps_B, bad_B),
            run_directory.KL: RowMean(kl_B),
        }


class Part:
    """Answers of one data set, with each prompt's answer to another prompt, and the reference's sums of both."""

    def __init__(self, context: Context, data: LabelledAnswers, seed: int, *, needs_kl: bool) -> None:
        length, count = context.spec.training.sequence_length, len(data.examples)
        self._context, self.data = context, data
        order = [Order(count, seed)[i] for i in range(count)]  # shuffled: both answers of a preference are neighbours
        before = dict(zip(order, [*order[-1:], *order[:-1]], strict=True))
        others = [before[i] for i in range(len(order))]
        self.mismatched = unpaired.mismatched(data.answers, others, context.chat, length) if needs_kl else []
        self.width = context.row_width(max(one.length for one in (*data.examples, *self.mismatched)))
        self._desirable_N = np.array([answer.is_desirable for answer in data.answers], np.float32)
        self.reference_2N: np.ndarray | None = None

    def ask_reference(self, params: Params, numbers: Sequence[int]) -> None:
        """Compute the reference's sums of these answers; NaN for others."""
        self.reference_2N = np.full((2, len(self.data.examples)), np.nan, np.float32)
        for row, examples in enumerate((self.data.examples, self.mismatched)[: 2 if self.mismatched else 1]):
            self.reference_2N[row, numbers] = self.sums(params, [examples[i] for i in numbers])

    def sums(self, params: Params, examples: Sequence[Example]) -> np.ndarray:
        """Return each example's sum of log-probs over its answer, [examples]."""
        sums = [
            np.asarray(self._context.score(params, batch, Loss.temperature).logps_BT).sum(axis=1, dtype=np.float64)
            for batch in self.scored(examples)
        ]
        return np.concatenate(sums)[: len(examples)]

    def scored(self, examples: Sequence[Example]) -> Iterator[Batch]:
        """Yield the batches in which these examples are scored; the last one is filled up."""
        at_once = self._context.rows_at_once(len(examples))
        for start in range(0, len(examples), at_once):
            here = examples[start : start + at_once]
            yield answers_batch([*here, *[None] * (at_once - len(here))], self.width)

    def kl(self, params: Params, numbers: Sequence[int]) -> float:
        """Return z of these rows; 0 where the loss has none."""
        if not self.mismatched:
            return 0.0
        assert self.reference_2N is not None
        sums = self.sums(params, [self.mismatched[i] for i in numbers])
        return unpaired_preference.kl(sums - self.reference_2N[1, numbers])

    def columns(self, numbers: Sequence[int], kl: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return ref, label and z of these answers, as the loss takes them."""
        assert self.reference_2N is not None
        return self.reference_2N[0, numbers], self._desirable_N[numbers], np.full(len(numbers), kl, np.float32)


class Kto(Loss):
    """Batches of labelled answers."""

    def __init__(
        self, context: Context, train: LabelledAnswers, held_out: LabelledAnswers | None, evaluation: Evaluation | None
    ) -> None:
        super().__init__(context.spec)
        training, count = context.spec.training, len(train.examples)
        self._context, self.evaluation = context, evaluation
        self._order = Order(count, training.seed)
        self._rows_count = training.batch_size
        self.parts = {"train": Part(context, train, training.seed, needs_kl=self._needs_kl)}
        if held_out is not None:
            self.parts["eval"] = Part(context, held_out, training.seed, needs_kl=self._needs_kl)
        self.total_steps = total_steps(training, count, self._rows_count)

    @property
    def needs_params(self) -> bool:
        """Return True if z is estimated by the weights of each step, and until the reference is known."""
        return self._needs_kl or self.parts["train"].reference_2N is None

    def next_batch(self, step: int, params: Params) -> tuple[Batch, Mapping[str, float]]:
        """Return the next answers of the shuffled data; the run's first call computes the reference's log-probs."""
        self._ask_reference(params)
        drawn = [self._order[draw] for draw in range(step * self._rows_count, (step + 1) * self._rows_count)]
        train = self.parts["train"]
        columns = [column_B[:, None] for column_B in train.columns(drawn, train.kl(params, drawn))]
        return _with_columns(answers_batch([train.data.examples[i] for i in drawn], train.width), columns), {}

    def expected_batch(self) -> Batch:
        """Return a batch of the shapes that all batches have; the reference's log-probs are placeholders."""
        train = self.parts["train"]
        batch = answers_batch(train.data.examples[:1] * self._rows_count, train.width)
        unknown_B1 = np.zeros((self._rows_count, 1), np.float32)
        return _with_columns(batch, [unknown_B1] * 3)

    def expected_scores(self, *, held_out: bool) -> Iterator[Batch]:
        """Yield the first batch of each kind: of the reference's answers, and of those that estimate z."""
        train, part = self.parts["train"], self.parts.get("eval")
        if not held_out and train.reference_2N is None:
            yield next(train.scored(train.data.examples[: len(self._drawn())]))
        if part is not None and (held_out or train.reference_2N is None):
            yield next(part.scored(part.data.examples))
        if not held_out and train.mismatched:
            yield next(train.scored(train.mismatched[:1] * self._rows_count))

    def evaluate(self, params: Params) -> Mapping[str, float]:
        """Return loss, rewards and accuracy on held-out answers, and rewards of greedy answers if requested."""
        part = self.parts.get("eval")
        if part is None:
            return {}
        self._ask_reference(params)
        numbers = range(len(part.data.examples))
        columns = map(jnp.asarray, part.columns(numbers, part.kl(params, numbers)))
        logps_N = jnp.asarray(part.sums(params, part.data.examples), jnp.float32)
        loss_N, facts = self._of_answers(logps_N, *columns)
        metrics = {"loss": RowMean(loss_N), **facts}
        rewards = {} if self.evaluation is None else self.evaluation.run(params)
        return {**{f"eval/{name}": metric.mean() for name, metric in metrics.items()}, **rewards}

    def state(self) -> dict[str, Any]:
        """Return the reference's log-probs. The position in the data follows from the step."""
        sums = {name: part.reference_2N for name, part in self.parts.items() if part.reference_2N is not None}
        return {"references": {name: batch_json.encode(sums_2N) for name, sums_2N in sums.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        for name, sums_2N in state["references"].items():
            self.parts[name].reference_2N = batch_json.decode(sums_2N)

    def _ask_reference(self, params: Params) -> None:
        """Compute the reference's log-probs, unless known, with `params`, which are the run's first."""
        if self.parts["train"].reference_2N is not None:
            return
        started, drawn = time.monotonic(), self._drawn()
        for name, part in self.parts.items():
            part.ask_reference(params, drawn if name == "train" else range(len(part.data.examples)))
        self._context.note(f"reference log-probs of {len(drawn)} answers: {time.monotonic() - started:.1f} s")

    def _drawn(self) -> list[int]:
        """Return the answers that the run uses."""
        draws = min(self.total_steps * self._rows_count, len(self.parts["train"].data.examples))
        return sorted({self._order[draw] for draw in range(draws)})


def _with_columns(batch: Batch, columns: Sequence[np.ndarray]) -> Batch:
    ref_B1, desirable_B1, kl_B1 = columns
    return batch._replace(ref_sums_B1=ref_B1, desirable_B1=desirable_B1, kl_B1=kl_B1)


def build(context: Context) -> Kto:
    """Read and tokenise the answers. Raises DataError on data that cannot be trained on."""
    train = _answers(context, "train")
    assert train is not None
    answers = evaluation(context, job_sampler(context)) if context.spec.rewards else None
    return Kto(context, train, _answers(context, "eval"), answers)


def _answers(context: Context, part: str) -> LabelledAnswers | None:
    rows_read = rows.of_job(context.spec.data, part, context.note)
    if rows_read is None:
        return None
    label = getattr(context.spec.data, part).columns.label
    made = unpaired.make(rows_read, context.chat, context.spec.training.sequence_length, label)
    if len(made.answers) < 2:
        raise DataError(
            f"{rows_read.uri}: 1 answer; accepted for kto: at least 2, because the KL is estimated by another"
        )
    context.note(
        f"data.{part}: {made.desirable} desirable and {len(made.answers) - made.desirable} undesirable answers "
        f"({rows_read.form}), {made.cut} longer than sequenceLength and cut{rows.skipped(made.bad)}"
    )
    return made
