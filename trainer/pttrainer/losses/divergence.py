"""The divergence of a model's predictions from a teacher's, token by token, a chunk of logits at a time.

Letters: B rows, T tokens, D and E model sizes, V vocabulary, C tokens of a chunk.

The generalised Jensen-Shannon divergence (arXiv 2306.13649, eq. 1) of teacher P and student Q, in nats:

    β = 0   KL(P ‖ Q)      β = 1   KL(Q ‖ P)      else   β·KL(P ‖ M) + (1 − β)·KL(Q ‖ M),  M = β·P + (1 − β)·Q

The ends are special cases, as in the paper's code and elsewhere: the formula between them tends to 0 there. With
`top_k` the outcomes are the teacher's (or the student's) k most likely tokens and "any other": still a divergence,
never above the full one. With `sampled_token` the value is sg(log q − log p) · log q of the row's own token: its mean
over the student's samples has the gradient of KL(Q ‖ P), a policy gradient whose advantage is log p − log q.

Neither model's B × T × V logits exist: chunks go through both heads one after the other, and the backward pass computes
a chunk again. Left out: vocabularies that differ; if one head is padded further than the other, what lies beyond the
shorter is left out of both.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from pttrainer.batch import Batch
from pttrainer.losses.chunking import chunk_size, chunks
from pttrainer.losses.head_gradient import gathered
from pttrainer.models import Model, Params

SMALLEST_REST = 1e-7
"""Least probability of "any other" if it is only known as 1 minus the rest: the rounding of that."""
LEAST_LOGP = -80.0
"""Least log-prob of "any other" if all are known: it has none if each token is an outcome of its own."""


class DistillationStats(NamedTuple):
    """Statistics per token, float32, 0 where the mask is 0.

    Gradients flow through `divergence_BT`, and through `logps_BT` where the teacher says so.
    """

    logps_BT: Array
    entropy_BT: Array
    divergence_BT: Array


SelfTeacherWeights = Literal["initial", "average", "current"]


@dataclass(frozen=True)
class Teacher:
    """A frozen teacher and its comparison with the student. Its weights are passed to each call.

    self_weights: set if the student is its own teacher, as before the first step, as its average, or as it is.
    top_of: whose most likely tokens `top_k` takes. sampled_token: compare the row's own token alone. trains_logps: the
    log-probs of the row's own tokens are part of a loss.
    """

    model: Model
    beta: float
    top_k: int = 0
    chunk: int | None = None
    self_weights: SelfTeacherWeights | None = None
    top_of: Literal["teacher", "student"] = "teacher"
    sampled_token: bool = False
    trains_logps: bool = False

    def stats(
        self, params: Params, student: Model, hidden_BTD: Array, head_VD: Array, batch: Batch
    ) -> DistillationStats:
        """Return the stats of the batch's tokens. The teacher reads the student's rows, or its own in the batch."""
        teacher_BTE = self._hidden(params, batch)
        V = min(head_VD.shape[0], self.model.config.vocab_size)
        heads = gathered(head_VD[:V]), gathered(self.model.head(params)[:V])

        def compared(hidden_BCD: Array, teacher_BCE: Array, targets_BC: Array) -> tuple[Array, Array]:
            student_BCV = jax.nn.log_softmax(_logits(student, hidden_BCD, heads[0]))
            teacher_BCV = lax.stop_gradient(jax.nn.log_softmax(_logits(self.model, teacher_BCE, heads[1])))
            if self.sampled_token:
                student_BC, teacher_BC = (_of_targets(x, targets_BC) for x in (student_BCV, teacher_BCV))
                return student_BCV, lax.stop_gradient(student_BC - teacher_BC) * student_BC
            return student_BCV, jensen_shannon(*self._outcomes(teacher_BCV, student_BCV), self.beta)

        arrays = hidden_BTD, teacher_BTE, batch.targets_BT
        stats = _by_chunk(compared, arrays, batch, self.chunk or chunk_size(*_shape(batch), V))
        return stats if self.trains_logps else _of_divergence(stats)

    def _hidden(self, params: Params, batch: Batch) -> Array:
        if batch.teacher_tokens_BU is None:
            return self.model.forward(params, batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT)
        rows = batch.teacher_tokens_BU, batch.teacher_positions_BU, batch.teacher_segment_ids_BU
        teacher_BUE = self.model.forward(params, *rows)
        return jnp.take_along_axis(teacher_BUE, batch.teacher_slots_BT[..., None], axis=1)

    def _outcomes(self, teacher_BCV: Array, student_BCV: Array) -> tuple[Array, Array]:
        if not self.top_k:
            return teacher_BCV, student_BCV
        of_BCV = teacher_BCV if self.top_of == "teacher" else lax.stop_gradient(student_BCV)
        _, ids_BCK = lax.top_k(of_BCV, min(self.top_k, of_BCV.shape[-1]))
        return _with_others(teacher_BCV, ids_BCK), _with_others(student_BCV, ids_BCK)


@dataclass(frozen=True)
class OfflineTeacher:
    """A teacher's log-probs in the data: its K most likely tokens; all others are one more outcome."""

    beta: float
    chunk: int | None = None

    def stats(
        self, params: Params, student: Model, hidden_BTD: Array, head_VD: Array, batch: Batch
    ) -> DistillationStats:
        """Return the stats of the batch's tokens; `params` is empty."""
        whole_VD = gathered(head_VD)

        def compared(hidden_BCD: Array, ids_BCK: Array, logps_BCK: Array) -> tuple[Array, Array]:
            student_BCV = jax.nn.log_softmax(_logits(student, hidden_BCD, whole_VD))
            return student_BCV, jensen_shannon(_with_rest(logps_BCK), _with_others(student_BCV, ids_BCK), self.beta)

        outcomes = hidden_BTD, batch.teacher_ids_BTK, batch.teacher_logps_BTK
        size = self.chunk or chunk_size(*_shape(batch), head_VD.shape[0])
        return _of_divergence(_by_chunk(compared, outcomes, batch, size))


def jensen_shannon(teacher_X: Array, student_X: Array, beta: float) -> Array:
    """Return the divergence of log-probs over the last axis. A stopped teacher gets no gradient."""
    if beta == 0.0:
        return _kl(teacher_X, student_X)
    if beta == 1.0:
        return _kl(student_X, teacher_X)
    mixture_X = jnp.logaddexp(teacher_X + jnp.log(beta), student_X + jnp.log1p(-beta))
    return beta * _kl(teacher_X, mixture_X) + (1.0 - beta) * _kl(student_X, mixture_X)


def _by_chunk(
    compared: Callable[..., tuple[Array, Array]], arrays: tuple[Array, ...], batch: Batch, size: int
) -> DistillationStats:
    """Compute stats by chunk.

    `compared` returns the student's log-probs [B, C, V] and the divergence [B, C] of a chunk of `arrays`.
    """
    parts = chunks(batch.mask_BT, size)

    def of_chunk(inputs: Any) -> tuple[Array, Array, Array]:
        targets_BC, _, *of_chunk = inputs
        student_BCV, divergence_BC = compared(*of_chunk)
        logps_BC = _of_targets(student_BCV, targets_BC)
        return logps_BC, -jnp.sum(jnp.exp(student_BCV) * student_BCV, axis=-1), divergence_BC

    def body(carry: None, inputs: Any) -> tuple[None, tuple[Array, Array, Array]]:
        zeros = jnp.zeros(inputs[1].shape, jnp.float32)
        return carry, lax.cond(jnp.any(inputs[1] > 0), of_chunk, lambda _: (zeros, zeros, zeros), inputs)

    split = tuple(parts.split(x) for x in (batch.targets_BT, batch.mask_BT, *arrays))
    _, stats = lax.scan(jax.checkpoint(body, prevent_cse=False), None, split)
    logps_BT, entropy_BT, divergence_BT = (jnp.where(batch.mask_BT > 0, parts.join(x), 0.0) for x in stats)
    return DistillationStats(logps_BT, lax.stop_gradient(entropy_BT), divergence_BT)


def _of_divergence(stats: DistillationStats) -> DistillationStats:
    """Return the stats whose gradients flow through the divergence alone."""
    return stats._replace(logps_BT=lax.stop_gradient(stats.logps_BT))


def _shape(batch: Batch) -> tuple[int, int]:
    rows, tokens = batch.targets_BT.shape
    return rows, tokens


def _of_targets(logps_BCV: Array, targets_BC: Array) -> Array:
    return jnp.take_along_axis(logps_BCV, targets_BC[..., None], axis=-1)[..., 0]


def _kl(p_X: Array, q_X: Array) -> Array:
    return jnp.sum(jnp.exp(p_X) * (p_X - q_X), axis=-1)


def _with_others(logps_BCV: Array, ids_BCK: Array) -> Array:
    """Return the log-probs of these tokens, and of all others together as one more outcome.

    The others are added up: 1 minus the rest is only rounding for a confident student, and would give no gradient.
    """
    others_BCV = jnp.put_along_axis(logps_BCV, ids_BCK, 2 * LEAST_LOGP, axis=-1, inplace=False)
    rest_BC1 = jnp.maximum(jax.nn.logsumexp(others_BCV, axis=-1, keepdims=True), LEAST_LOGP)
    return jnp.concatenate([jnp.take_along_axis(logps_BCV, ids_BCK, axis=-1), rest_BC1], axis=-1)


def _with_rest(logps_K: Array) -> Array:
    """Append one more outcome: all tokens without a known log-prob."""
    rest = jnp.maximum(1.0 - jnp.sum(jnp.exp(logps_K), axis=-1, keepdims=True), SMALLEST_REST)
    return jnp.concatenate([logps_K, jnp.log(rest)], axis=-1)


def _logits(model: Model, hidden_BCD: Array, head_VD: Array) -> Array:
    product = jnp.einsum(
        "bcd,vd->bcv", hidden_BCD, head_VD.astype(hidden_BCD.dtype), preferred_element_type=jnp.float32
    )
    return model.capped(product)
