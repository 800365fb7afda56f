"""Supervised fine-tuning.

    loss = − Σ_t m_t · log π(x_t | x_<t) / Σ m        sums over the whole optimizer step

m is 1 on assistant tokens, end-of-turn token included (on all tokens with `lossOnPrompt`). Rows are packed by default.
Options change the loss of a token (`token`): label smoothing, z-loss, DFT; evaluation always uses the plain
log-likelihood. Degenerate case: a row without a token to learn is dropped before training, so the denominator is never
0.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from ptapi import run_directory
from ptapi.spec import PostTrainJobSpec
from ptapi.spec.algorithm import Sft as SftSpec
from pttrainer.batch import Batch
from pttrainer.data import rows, sft_examples
from pttrainer.data.batching import Batches, PackedRows, in_order
from pttrainer.data.loss_weights import Mean, Metric, perplexity
from pttrainer.losses.chunked_logprobs import TokenStats
from pttrainer.losses.loss_traits import BY_TOKEN
from pttrainer.models import Params
from pttrainer.rollout.context import Context
from pttrainer.rollout.evaluation.evaluator import Evaluation, evaluation, job_sampler
from pttrainer.train_step.optimizer.transformation import total_steps


def token(stats: TokenStats, spec: SftSpec) -> Array:
    """Return the loss of each token. q: its target's probability; ε: labelSmoothing; z: zLoss.

    nll   −(1 − ε) · log q  −  ε · mean over the vocabulary of log π(v)    (arXiv 1512.00567, section 7)
    dft   −q · log q, without a gradient through the first q               (arXiv 2508.05629)
    both  + z · (log Σ exp of the logits)²                                 (PaLM, arXiv 2204.02311, section 5)
    """
    loss_BT = -stats.logps_BT
    if spec.loss == "dft":
        loss_BT = lax.stop_gradient(jnp.exp(stats.logps_BT)) * loss_BT
    if stats.lse_BT is None or stats.mean_BT is None:
        return loss_BT
    if spec.label_smoothing > 0:
        loss_BT = (1.0 - spec.label_smoothing) * loss_BT + spec.label_smoothing * (stats.lse_BT - stats.mean_BT)
    return loss_BT + spec.z_loss * stats.lse_BT**2 if spec.z_loss > 0 else loss_BT


class Loss:
    """Cross-entropy, with the options of the spec (`Objective`)."""

    temperature = 1.0
    entropy = False
    by_token = BY_TOKEN["sft"]

    def __init__(self, spec: PostTrainJobSpec) -> None:
        self._spec = spec.algorithm.sft or SftSpec()
        self.level = self._spec.label_smoothing > 0 or self._spec.z_loss > 0

    def loss(self, stats: TokenStats, batch: Batch) -> tuple[Array, dict[str, Metric]]:
        """Return each token's loss in nats, and as metrics its negative log-likelihood and the accuracy."""
        assert stats.hit_BT is not None
        nll_BT = -stats.logps_BT
        metrics: dict[str, Metric] = {run_directory.NLL: Mean(nll_BT), run_directory.ACCURACY: Mean(stats.hit_BT)}
        is_plain = self._spec.loss == "nll" and not self.level
        return nll_BT if is_plain else token(stats, self._spec), metrics


class Sft(Loss):
    """Batches from the data pipeline."""

    needs_params = False

    def __init__(
        self,
        context: Context,
        train: PackedRows,
        held_out: Iterable[Batch],
        evaluation: Evaluation | None,
        image_digests: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(context.spec)
        training = context.spec.training
        self._context, self.evaluation = context, evaluation
        self._batches = Batches(train, training.batch_size, training.seed)
        self._held_out = held_out
        self.image_digests = image_digests or {}
        self.total_steps = total_steps(training, self._batches.rows, training.batch_size)

    def next_batch(self, step: int, params: Params) -> tuple[Batch, Mapping[str, float]]:
        """Return the next rows of the shuffled data; step and weights do not matter."""
        return next(self._batches), {}

    def expected_batch(self) -> Batch:
        """Return a batch of the shapes that all batches have."""
        return self._batches.foreseen()

    def expected_scores(self, *, held_out: bool) -> Iterable[Batch]:
        """Return the first held-out batch; all have its shapes, but for images."""
        return islice(self._held_out, 1 if held_out else 0)

    def evaluate(self, params: Params) -> Mapping[str, float]:
        """Return the mean loss per held-out token, its exponential, and rewards of greedy answers if requested."""
        total, hits, count = 0.0, 0.0, 0.0
        for batch in self._held_out:
            stats = self._context.score(params, batch, self.temperature)
            assert stats.hit_BT is not None
            total -= float(stats.logps_BT.sum(dtype="float64"))
            hits += float(stats.hit_BT.sum(dtype="float64"))
            count += float(batch.mask_BT.sum(dtype="float64"))
        if count == 0.0:
            return {}
        rewards = {} if self.evaluation is None else self.evaluation.run(params)
        return {
            run_directory.EVAL_LOSS: total / count,
            "eval/perplexity": perplexity(total / count),
            "eval/token_accuracy": hits / count,
            **rewards,
        }

    def state(self) -> dict[str, Any]:
        """Return the position in the data."""
        return self._batches.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._batches.restore(state)


def build(context: Context) -> Sft:
    """Read and tokenise the data. Raises DataError on data that cannot be trained on."""
    spec = context.spec.algorithm.sft
    assert spec is not None
    train, held_out = (
        read_rows(context, part, learn_prompt=spec.loss_on_prompt, pack=spec.packing) for part in ("train", "eval")
    )
    assert train is not None
    batches: Iterable[Batch] = []
    if held_out is not None:
        batches = in_order(held_out, context.rows_at_once(len(held_out)))
    parts = {"train": train.images_digest, "eval": None if held_out is None else held_out.images_digest}
    digests = {part: digest for part, digest in parts.items() if digest is not None}
    return Sft(context, train, batches, _evaluation(context), digests)


def _evaluation(context: Context) -> Evaluation | None:
    """Return the evaluation of sampled answers, if the job says how to score them."""
    is_wanted = context.spec.rewards or context.spec.evaluation.answers
    return evaluation(context, job_sampler(context)) if is_wanted else None


def read_rows(
    context: Context, part: str, *, learn_prompt: bool, pack: bool, with_teacher_logps: bool = False
) -> PackedRows | None:
    """Return the packed rows of `data.train` or `data.eval`; None if the job has no such data. Raises DataError.

    with_teacher_logps: include the teacher's log-probs from the rows.
    """
    rows_read = rows.of_job(context.spec.data, part, context.note)
    if rows_read is None:
        return None
    tokenized = sft_examples.make(
        rows_read,
        context.chat,
        context.spec.training.sequence_length,
        learn_prompt=learn_prompt,
        with_teacher=with_teacher_logps,
    )
    length = context.spec.training.sequence_length
    width = length if pack else context.row_width(max(example.length for example in tokenized.examples))
    packed = PackedRows(tokenized.examples, width, pack=pack, chat=context.chat)
    images = f", at most {packed.most_images} images each" if packed.most_images else ""
    context.note(
        f"data.{part}: {tokenized.rows} rows ({rows_read.form}), "
        f"{tokenized.cut} longer than sequenceLength and cut, {tokenized.dropped} without a token to learn, "
        f"{len(packed)} rows of {packed.width} tokens{images}{rows.skipped(tokenized.bad)}"
    )
    return packed
