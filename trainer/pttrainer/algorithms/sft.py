"""Supervised fine-tuning.

    loss = − Σ_t m_t · log π(x_t | x_<t) / Σ m        sums over the whole optimizer step

m is 1 on what the assistant says, end-of-turn token included (everything with `lossOnPrompt`). Rows are
packed unless told otherwise. Left out: label smoothing and auxiliary losses. Degenerate case: a row without
a token to learn is dropped before training, so the denominator is never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jax import Array

from ptapi import rundir
from pttrainer.algorithms.protocol import Context
from pttrainer.batch import Batch
from pttrainer.data import examples, rows
from pttrainer.data.batches import Batches, PackedRows, in_order
from pttrainer.losses import TokenStats
from pttrainer.models import Params
from pttrainer.reduce import Metric
from pttrainer.rollout.held_out import Evaluation, evaluation, native_sampler


class Sft:
    """Batches from the data pipeline; cross-entropy as the loss."""

    temperature = 1.0
    entropy = False
    by_token = True
    needs_params = False

    def __init__(
        self, context: Context, train: PackedRows, held_out: list[Batch], evaluation: Evaluation | None
    ) -> None:
        training = context.spec.training
        self._context, self._evaluation = context, evaluation
        self._batches = Batches(train, training.batch_size, training.seed)
        self._held_out = held_out
        per_epoch = self._batches.rows / training.batch_size
        self.total_steps = training.steps or max(1, math.ceil((training.epochs or 1.0) * per_epoch))

    def next_batch(self, step: int, params: Params) -> tuple[Batch, Mapping[str, float]]:
        """The next rows of the shuffled data; neither step nor weights matter."""
        return next(self._batches), {}

    def loss(self, stats: TokenStats, batch: Batch) -> tuple[Array, dict[str, Metric]]:
        """Negative log-likelihood per token, nats."""
        return -stats.logps_BT, {}

    def evaluate(self, step: int, params: Params) -> Mapping[str, float]:
        """Mean loss per token over all held-out rows, its exponential, and rewards of greedy answers if asked for."""
        total, count = 0.0, 0.0
        for batch in self._held_out:
            total -= float(self._context.score(params, batch, self.temperature).logps_BT.sum(dtype="float64"))
            count += float(batch.mask_BT.sum(dtype="float64"))
        if count == 0.0:
            return {}
        rewards = {} if self._evaluation is None else self._evaluation.run(params)
        return {rundir.EVAL_LOSS: total / count, "eval/perplexity": math.exp(min(total / count, 700.0)), **rewards}

    def state(self) -> dict[str, Any]:
        """The position in the data."""
        return self._batches.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._batches.restore(state)


def build(context: Context) -> Sft:
    """Reads and tokenises the data; raises DataError on data that cannot be trained on."""
    spec = context.spec.algorithm.sft
    assert spec is not None
    train, held_out = (
        read_rows(context, part, learn_prompt=spec.loss_on_prompt, pack=spec.packing) for part in ("train", "eval")
    )
    assert train is not None
    batches = [] if held_out is None else in_order(held_out, context.rows_at_once(len(held_out)))
    return Sft(context, train, batches, _evaluation(context))


def _evaluation(context: Context) -> Evaluation | None:
    """Answers to held-out prompts are sampled only where the job says how they are judged."""
    return evaluation(context, native_sampler(context)) if context.spec.rewards else None


def read_rows(context: Context, part: str, *, learn_prompt: bool, pack: bool, told: bool = False) -> PackedRows | None:
    """Rows of `data.train` or `data.eval`, laid out; None where the job names no such data. Raises DataError.

    told: with what a teacher said, from the rows.
    """
    source = getattr(context.spec.data, part)
    if source is None:
        return None
    data = context.spec.data
    read = rows.load(
        source, f"spec.data.{part}", data.system_prompt, skip_bad=data.on_bad_row == "skip", note=context.note
    )
    made = examples.make(
        read, context.chat, context.spec.training.sequence_length, learn_prompt=learn_prompt, told=told
    )
    packed = PackedRows(made.examples, context.spec.training.sequence_length, pack=pack)
    context.note(
        f"data.{part}: {made.rows} rows ({read.format}: {', '.join(read.columns.values())}), "
        f"{made.cut} longer than sequenceLength and cut, {made.dropped} without a token to learn, "
        f"{len(packed)} rows of {packed.width} tokens{rows.skipped(made.bad)}"
    )
    return packed
