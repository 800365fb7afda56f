"""Preference optimisation: DPO (arXiv 2305.18290) and its relatives; the formulas are in `losses.preference`.

A batch of 2P rows holds P pairs: all chosen answers, then all rejected ones. Each row becomes one number, the sum of
its answer's log-probs, and both rows of a pair carry the pair's loss with half its weight:

    loss = 1/P · Σ_pairs ℓ(π_c − ref_c, π_r − ref_r)

The reference is the model before the first step. Its log-probs are one number per answer, so they are computed once, by
those very weights before they change, and kept, in checkpoints too: there is never a second copy of the weights, with
adapters or without. The price is a forward pass over the run's pairs before its first step.

Left out: packing (pairs are padded to one width), a reference that moves. Degenerate case: in the first step policy and
reference are equal, every margin is 0 and the loss is log 2 (sigmoid).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from ptapi import run_directory
from ptapi.spec import Dpo as DpoSpec
from ptapi.spec import PostTrainJobSpec
from pttrainer.batch import Batch
from pttrainer.checkpoint import batch_json
from pttrainer.data import rows
from pttrainer.data.loss_weights import Metric, RowMean
from pttrainer.data.preferences import pairs as preference_pairs
from pttrainer.data.preferences.pairs import Pair, Pairs
from pttrainer.data.prompts import Order
from pttrainer.losses import preference
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.losses.loss_traits import BY_TOKEN, WITHOUT_REFERENCE
from pttrainer.losses.preference import Coefficients, Side
from pttrainer.models import Params
from pttrainer.rollout.context import Context
from pttrainer.rollout.evaluation.evaluator import Evaluation, evaluation, job_sampler
from pttrainer.train_step.optimizer.transformation import total_steps


class Loss:
    """The loss of pairs that the spec names (`Objective`)."""

    temperature = 1.0
    entropy = False
    level = False
    by_token = BY_TOKEN["dpo"]

    def __init__(self, spec: PostTrainJobSpec) -> None:
        assert spec.algorithm.dpo is not None
        self._variant = preference.VARIANTS[spec.algorithm.dpo.loss]
        self._needs_reference = spec.algorithm.dpo.loss not in WITHOUT_REFERENCE
        self._coefficients = _coefficients(spec.algorithm.dpo, self._variant)

    def loss(self, stats: TokenStats, batch: Batch) -> tuple[Array, dict[str, Metric]]:
        """Return the pair's loss on every token of both its rows; the weights pick one token of each row."""
        chosen, rejected = _sides(stats.logps_BT, batch)
        loss_P = self._variant.loss(chosen, rejected, self._coefficients)
        loss_BT = jnp.broadcast_to(_of_rows(loss_P)[:, None], batch.mask_BT.shape)
        return loss_BT, {name: RowMean(_of_rows(values_P)) for name, values_P in self._facts(chosen, rejected).items()}

    def _facts(self, chosen: Side, rejected: Side) -> dict[str, Array]:
        """Return the metrics per pair. Rewards are implicit: β times the score that the loss compares."""
        beta, score = self._coefficients.beta, self._variant.score
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
        self._context, self.evaluation = context, evaluation
        self._train, self._held_out = train, held_out
        self._order = Order(len(train.pairs), training.seed)
        self._pairs = training.batch_size // 2
        self._width = context.row_width(train.longest)
        self._images, self._held_out_images = (
            None if pairs is None else pairs.row_images(context.chat) for pairs in (train, held_out)
        )
        self._references: dict[str, np.ndarray] | None = None
        self.total_steps = total_steps(training, len(train.pairs), self._pairs)

    @property
    def image_digests(self) -> Mapping[str, str]:
        """Return digests of the images' bytes, by part of the data that has any."""
        parts = {"train": self._train, "eval": self._held_out}
        return {part: digest for part, of in parts.items() if of is not None and (digest := of.images_digest)}

    @property
    def needs_params(self) -> bool:
        """Return True until the reference's log-probs are computed."""
        return self._needs_reference and self._references is None

    def next_batch(self, step: int, params: Params) -> tuple[Batch, Mapping[str, float]]:
        """Return the next pairs of the shuffled data; the run's first call computes the reference's log-probs."""
        self._compute_reference(params)
        drawn = [self._order[draw] for draw in range(step * self._pairs, (step + 1) * self._pairs)]
        return self._batch("train", [self._train.pairs[i] for i in drawn], drawn, self._width), {}

    def expected_batch(self) -> Batch:
        """Return a batch of the shapes that all batches have; the reference's log-probs are placeholders."""
        batch = preference_pairs.to_pairs_batch(self._train.pairs[:1] * self._pairs, self._width, self._images)
        unknown_B1 = np.zeros((2 * self._pairs, 1), np.float32)
        return batch._replace(ref_sums_B1=unknown_B1) if self._needs_reference else batch

    def expected_scores(self, *, held_out: bool) -> Iterator[Batch]:
        """Yield the first batch that the reference scores of each part of the data, or the first held-out one."""
        if held_out:
            yield from islice(self._held_out_batches(), 1)
        elif self.needs_params:
            for referenced in self._referenced():
                yield next(self._reference_batches(*referenced))[1]

    def evaluate(self, params: Params) -> Mapping[str, float]:
        """Return loss, margins and accuracy on held-out pairs, and rewards of greedy answers if requested."""
        if self._held_out is None:
            return {}
        self._compute_reference(params)
        sums: dict[str, float] = {}
        for batch in self._held_out_batches():
            stats = self._context.score(params, batch, self.temperature)
            chosen, rejected = _sides(stats.logps_BT, batch)
            counts_P = np.asarray(chosen.tokens_P) > 0
            values = {"loss": self._variant.loss(chosen, rejected, self._coefficients), **self._facts(chosen, rejected)}
            for name, values_P in values.items():
                sums[name] = sums.get(name, 0.0) + float(np.sum(np.asarray(values_P, np.float64), where=counts_P))
        rewards = {} if self.evaluation is None else self.evaluation.run(params)
        return {**{f"eval/{name}": value / len(self._held_out.pairs) for name, value in sums.items()}, **rewards}

    def state(self) -> dict[str, Any]:
        """Return the reference's log-probs. The position in the data follows from the step."""
        return {"references": {name: batch_json.encode(sums_N2) for name, sums_N2 in (self._references or {}).items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._references = {name: batch_json.decode(array) for name, array in state["references"].items()}

    def _compute_reference(self, params: Params) -> None:
        """Compute the reference's log-probs, unless known, with `params`, which are the run's first."""
        if not self.needs_params:
            return
        started, references = time.monotonic(), {}
        for part, data, chosen in self._referenced():
            references[part] = np.full((len(data.pairs), 2), np.nan, np.float32)  # of pairs that the run never uses
            for here, batch in self._reference_batches(part, data, chosen):
                logps_BT = self._context.score(params, batch, self.temperature).logps_BT
                sums_2P = np.sum(logps_BT, axis=1, dtype=np.float64).reshape(2, -1)
                references[part][here] = sums_2P[:, : len(here)].T
        self._references = references
        self._context.note(
            f"reference log-probs of {sum(len(x) for x in references.values())} pairs: "
            f"{time.monotonic() - started:.1f} s"
        )

    def _referenced(self) -> Iterator[tuple[str, Pairs, Sequence[int]]]:
        """Yield each part of the data, and the numbers of the pairs that the run uses."""
        count = len(self._train.pairs)
        yield "train", self._train, sorted({self._order[i] for i in range(min(self.total_steps * self._pairs, count))})
        if self._held_out is not None:
            yield "eval", self._held_out, range(len(self._held_out.pairs))

    def _reference_batches(
        self, part: str, data: Pairs, chosen: Sequence[int]
    ) -> Iterator[tuple[Sequence[int], Batch]]:
        """Yield the batches of these pairs that the reference scores, with the numbers of the pairs."""
        training = self._context.spec.training
        return self._batches(part, data, chosen, (training.micro_batch_size or training.batch_size) // 2)

    def _batches(
        self, part: str, data: Pairs, chosen: Sequence[int], at_once: int
    ) -> Iterator[tuple[Sequence[int], Batch]]:
        """Yield these pairs in batches of one shape, with the numbers of the pairs."""
        width = self._context.row_width(data.longest)
        for start in range(0, len(chosen), at_once):
            here = chosen[start : start + at_once]
            yield here, self._batch(part, _filled([data.pairs[i] for i in here], at_once), here, width)

    def _batch(self, part: str, pairs: Sequence[Pair | None], numbers: Sequence[int], width: int) -> Batch:
        images = self._images if part == "train" else self._held_out_images
        batch = preference_pairs.to_pairs_batch(pairs, width, images)
        if self._references is None or not self._needs_reference:
            return batch
        sums_2P = np.zeros((2, len(pairs)), np.float32)
        sums_2P[:, : len(numbers)] = self._references[part][numbers].T
        return batch._replace(ref_sums_B1=sums_2P.reshape(-1, 1))

    def _held_out_batches(self) -> Iterator[Batch]:
        if self._held_out is None:
            return
        every = range(len(self._held_out.pairs))
        at_once = -(-self._context.rows_at_once(2 * len(every)) // 2)
        for _, batch in self._batches("eval", self._held_out, every, at_once):
            yield batch


def build(context: Context) -> Dpo:
    """Read and tokenise the pairs. Raises DataError on data that cannot be trained on."""
    train = _pairs(context, "train")
    assert train is not None
    answers = evaluation(context, job_sampler(context)) if context.spec.rewards else None
    return Dpo(context, train, _pairs(context, "eval"), answers)


def _pairs(context: Context, part: str) -> Pairs | None:
    rows_read = rows.of_job(context.spec.data, part, context.note)
    if rows_read is None:
        return None
    pairs = preference_pairs.make(rows_read, context.chat, context.spec.training.sequence_length)
    context.note(
        f"data.{part}: {len(pairs.pairs)} pairs ({rows_read.form}), {pairs.cut} longer than sequenceLength and "
        f"cut{rows.skipped(pairs.bad)}"
    )
    return pairs


def _coefficients(spec: DpoSpec, paper: preference.Variant) -> Coefficients:
    beta = paper.beta if spec.beta is None else spec.beta
    return Coefficients(beta, spec.label_smoothing, paper.margin if spec.margin is None else spec.margin)


def _filled(pairs: Sequence[Pair], count: int) -> list[Pair | None]:
    """Pad the pairs to `count`, so that all batches have one shape and compile once."""
    return [*pairs, *[None] * (count - len(pairs))]


def _sides(logps_BT: Array, batch: Batch) -> tuple[Side, Side]:
    """Split rows into chosen answers, the first half, and rejected ones."""
    sums_B, tokens_B = jnp.sum(logps_BT, axis=1), jnp.sum(jnp.asarray(batch.mask_BT), axis=1)
    ref_B = jnp.zeros_like(sums_B) if batch.ref_sums_B1 is None else jnp.asarray(batch.ref_sums_B1)[:, 0]
    P = sums_B.shape[0] // 2
    return Side(sums_B[:P], ref_B[:P], tokens_B[:P]), Side(sums_B[P:], ref_B[P:], tokens_B[P:])


def _of_rows(values_P: Array) -> Array:
    return jnp.concatenate([values_P, values_P])


def _drift(side: Side) -> Array:
    """Return k3 of the mean log-ratio per token.

    The answers are the data's and not the policy's, so this is no estimate of the exact KL; it is 0 while the
    policy is the reference, and grows with the distance.
    """
    return jnp.expm1(-side.mean_P) + side.mean_P
