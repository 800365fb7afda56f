"""Preference optimisation: DPO (arXiv 2305.18290) and its relatives, whose formulas stand in `preference_loss`.

A batch of 2P rows holds P pairs: all chosen answers, then all rejected ones. Rows become one number each, the sum of
their answer's log-probs, and both rows of a pair carry the pair's loss with half its weight:

    loss = 1/P · Σ_pairs ℓ(π_c − ref_c, π_r − ref_r)

The reference is the model before the first step. Its log-probs are one number per answer, so they are computed once,
by those very weights before they change, and kept, in checkpoints too: there is never a second copy of the weights,
with adapters or without. The price is a forward pass over the pairs that the run will see, before its first step.

What is left out: packing (pairs are padded to one width), a reference that moves. Degenerate case: in the first step
policy and reference are one, every margin is 0 and the loss is log 2 (sigmoid).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from ptapi import run_directory
from ptapi.spec import Dpo as DpoSpec
from ptapi.spec import PostTrainJobSpec
from pttrainer.batch import Batch
from pttrainer.data import preference_pairs, rows
from pttrainer.data.loss_weights import Metric, RowMean
from pttrainer.data.preference_pairs import Pair, Pairs
from pttrainer.data.prompts import Order
from pttrainer.losses import preference
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.losses.loss_traits import BY_TOKEN, WITHOUT_REFERENCE
from pttrainer.losses.preference import Numbers, Side
from pttrainer.models import Params
from pttrainer.rollout import batch_json
from pttrainer.rollout.context import Context
from pttrainer.rollout.evaluation.evaluator import Evaluation, evaluation, job_sampler
from pttrainer.train_step.optimizer.total_steps import total_steps


class Loss:
    """A loss of pairs, as the spec names it (`Objective`)."""

    temperature = 1.0
    entropy = False
    level = False
    by_token = BY_TOKEN["dpo"]

    def __init__(self, spec: PostTrainJobSpec) -> None:
        assert spec.algorithm.dpo is not None
        self._variant = preference.VARIANTS[spec.algorithm.dpo.loss]
        self._needs_reference = spec.algorithm.dpo.loss not in WITHOUT_REFERENCE
        self._numbers = _numbers(spec.algorithm.dpo, self._variant)

    def loss(self, stats: TokenStats, batch: Batch) -> tuple[Array, dict[str, Metric]]:
        """The pair's loss on every token of both its rows; the weights pick one of each."""
        chosen, rejected = _sides(stats.logps_BT, batch)
        loss_P = self._variant.loss(chosen, rejected, self._numbers)
        loss_BT = jnp.broadcast_to(_of_rows(loss_P)[:, None], batch.mask_BT.shape)
        return loss_BT, {name: RowMean(_of_rows(values_P)) for name, values_P in self._facts(chosen, rejected).items()}

    def _facts(self, chosen: Side, rejected: Side) -> dict[str, Array]:
        """What people watch, per pair. Rewards are implicit: β times the score that the loss compares."""
        beta, score = self._numbers.beta, self._variant.score
        margin_P = beta * (score(chosen) - score(rejected))
        facts = {
            "rewards/chosen": beta * score(chosen),
            "rewards/rejected": beta * score(rejected),
            "rewards/margins": margin_P,
            "rewards/accuracies": (margin_P > 0).astype(jnp.float32),
            "logps/chosen": chosen.logps_P,
            "logps/rejected": rejected.logps_P,
        }
        if self._needs_reference:
            facts[run_directory.KL] = 0.5 * (_drift(chosen) + _drift(rejected))
        return facts


class Dpo(Loss):
    """Batches of pairs."""

    def __init__(self, context: Context, train: Pairs, held_out: Pairs | None, evaluation: Evaluation | None) -> None:
        super().__init__(context.spec)
        training = context.spec.training
        self._context, self._evaluation = context, evaluation
        self._train, self._held_out = train, held_out
        self._order = Order(len(train.pairs), training.seed)
        self._pairs = training.batch_size // 2
        self._width = train.width(training.sequence_length)
        self._references: dict[str, np.ndarray] | None = None
        self.total_steps = total_steps(training, len(train.pairs), self._pairs)

    @property
    def needs_params(self) -> bool:
        """For the reference's log-probs, as long as there are none."""
        return self._needs_reference and self._references is None

    def next_batch(self, step: int, params: Params) -> tuple[Batch, Mapping[str, float]]:
        """The next pairs of the shuffled data; the run's first call also asks the reference."""
        self._ask_reference(params)
        drawn = [self._order[draw] for draw in range(step * self._pairs, (step + 1) * self._pairs)]
        return self._batch("train", [self._train.pairs[i] for i in drawn], drawn, self._width), {}

    def foreseen(self) -> Batch:
        """As all batches are; the reference has not spoken yet."""
        batch = preference_pairs.to_pairs_batch(self._train.pairs[:1] * self._pairs, self._width)
        unknown_B1 = np.zeros((2 * self._pairs, 1), np.float32)
        return batch._replace(ref_sums_B1=unknown_B1) if self._needs_reference else batch

    def evaluate(self, step: int, params: Params) -> Mapping[str, float]:
        """Loss, margins and accuracy on held-out pairs, and rewards of greedy answers if asked for."""
        if self._held_out is None:
            return {}
        self._ask_reference(params)
        sums: dict[str, float] = {}
        for batch in self._held_out_batches():
            stats = self._context.score(params, batch, self.temperature)
            chosen, rejected = _sides(stats.logps_BT, batch)
            counts_P = np.asarray(chosen.tokens_P) > 0
            values = {"loss": self._variant.loss(chosen, rejected, self._numbers), **self._facts(chosen, rejected)}
            for name, values_P in values.items():
                sums[name] = sums.get(name, 0.0) + float(np.sum(np.asarray(values_P, np.float64), where=counts_P))
        rewards = {} if self._evaluation is None else self._evaluation.run(params)
        return {**{f"eval/{name}": value / len(self._held_out.pairs) for name, value in sums.items()}, **rewards}

    def state(self) -> dict[str, Any]:
        """What the reference said. The position in the data follows from the step."""
        return {"references": {name: batch_json.encode(sums_N2) for name, sums_N2 in (self._references or {}).items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._references = {name: batch_json.decode(array) for name, array in state["references"].items()}

    def _ask_reference(self, params: Params) -> None:
        """`params` are the run's first: whoever resumes has the answers in the checkpoint."""
        if not self.needs_params:
            return
        started = time.monotonic()
        seen = {self._order[draw] for draw in range(min(self.total_steps * self._pairs, len(self._train.pairs)))}
        found = {"train": self._reference_sums(params, self._train, self._width, sorted(seen))}
        if self._held_out is not None:
            width, every = self._held_out.width(self._context.spec.training.sequence_length), len(self._held_out.pairs)
            found["eval"] = self._reference_sums(params, self._held_out, width, list(range(every)))
        self._references = found
        self._context.note(
            f"reference log-probs of {sum(len(x) for x in found.values())} pairs: {time.monotonic() - started:.1f} s"
        )

    def _reference_sums(self, params: Params, data: Pairs, width: int, chosen: Sequence[int]) -> np.ndarray:
        """[pairs, 2], chosen and rejected; NaN where the run never looks."""
        sums_N2 = np.full((len(data.pairs), 2), np.nan, np.float32)
        rows_at_once = self._context.spec.training.micro_batch_size or self._context.spec.training.batch_size
        for start in range(0, len(chosen), rows_at_once // 2):
            here = chosen[start : start + rows_at_once // 2]
            batch = preference_pairs.to_pairs_batch(_filled([data.pairs[i] for i in here], rows_at_once // 2), width)
            logps_BT = self._context.score(params, batch, self.temperature).logps_BT
            sums_2P = np.sum(logps_BT, axis=1, dtype=np.float64).reshape(2, -1)
            sums_N2[here] = sums_2P[:, : len(here)].T
        return sums_N2

    def _batch(self, part: str, pairs: Sequence[Pair | None], numbers: Sequence[int], width: int) -> Batch:
        batch = preference_pairs.to_pairs_batch(pairs, width)
        if self._references is None or not self._needs_reference:
            return batch
        sums_2P = np.zeros((2, len(pairs)), np.float32)
        sums_2P[:, : len(numbers)] = self._references[part][numbers].T
        return batch._replace(ref_sums_B1=sums_2P.reshape(-1, 1))

    def _held_out_batches(self) -> list[Batch]:
        assert self._held_out is not None
        pairs, width = self._held_out.pairs, self._held_out.width(self._context.spec.training.sequence_length)
        at_once = -(-self._context.rows_at_once(2 * len(pairs)) // 2)
        starts = range(0, len(pairs), at_once)
        numbers = [range(start, min(start + at_once, len(pairs))) for start in starts]
        return [self._batch("eval", _filled([pairs[i] for i in here], at_once), here, width) for here in numbers]


def build(context: Context) -> Dpo:
    """Reads and tokenises the pairs; raises DataError on data that cannot be trained on."""
    train = _pairs(context, "train")
    assert train is not None
    judged = evaluation(context, job_sampler(context)) if context.spec.rewards else None
    return Dpo(context, train, _pairs(context, "eval"), judged)


def _pairs(context: Context, part: str) -> Pairs | None:
    read = rows.of_job(context.spec.data, part, context.note)
    if read is None:
        return None
    made = preference_pairs.make(read, context.chat, context.spec.training.sequence_length)
    context.note(
        f"data.{part}: {len(made.pairs)} pairs ({read.form}), {made.cut} longer than sequenceLength and "
        f"cut{rows.skipped(made.bad)}"
    )
    return made


def _numbers(spec: DpoSpec, paper: preference.Variant) -> Numbers:
    beta = paper.beta if spec.beta is None else spec.beta
    return Numbers(beta, spec.label_smoothing, paper.margin if spec.margin is None else spec.margin)


def _filled(pairs: Sequence[Pair], count: int) -> list[Pair | None]:
    """One shape for all batches: it compiles once."""
    return [*pairs, *[None] * (count - len(pairs))]


def _sides(logps_BT: Array, batch: Batch) -> tuple[Side, Side]:
    """The chosen rows are the first half."""
    sums_B, tokens_B = jnp.sum(logps_BT, axis=1), jnp.sum(jnp.asarray(batch.mask_BT), axis=1)
    ref_B = jnp.zeros_like(sums_B) if batch.ref_sums_B1 is None else jnp.asarray(batch.ref_sums_B1)[:, 0]
    P = sums_B.shape[0] // 2
    return Side(sums_B[:P], ref_B[:P], tokens_B[:P]), Side(sums_B[P:], ref_B[P:], tokens_B[P:])


def _of_rows(values_P: Array) -> Array:
    return jnp.concatenate([values_P, values_P])


def _drift(side: Side) -> Array:
    """k3 of the mean log-ratio per token. The answers are the data's and not the policy's, so this estimates no exact
    KL; it is 0 where the policy still is the reference, and grows with the distance."""
    return jnp.expm1(-side.mean_P) + side.mean_P
