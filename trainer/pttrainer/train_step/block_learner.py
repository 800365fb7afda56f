"""Train the head that proposes tokens (`models.decoding.block_head`) from the hidden states of the policy's own step.

Letters: B rows, T tokens, A anchors, K proposals, D model, V vocabulary.

    loss = Σ −log p(token t + 1 + k | y_k(h_t, token t + 1))       k = 1 … K; p: the model's head on y_k

over anchors t: every K-th token of a row, beginning at (step mod K), so that a step sends about T states of the head
through the model's output head, as many as of the policy. An anchor's proposal counts if all tokens up to it do, which
are then of one completion. No gradient leaves the head: hidden states and the model's output head are constants. Its
optimizer is its own (AdamW at a constant rate, its gradient clipped by itself), so the policy learns as without it.
Degenerate case: no K + 1 tokens in a row count; nothing is learned, and the loss is 0.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from ptapi.spec import BlockDrafts, Optimizer
from pttrainer.batch import Batch
from pttrainer.data.loss_weights import Mean, Partial
from pttrainer.losses.chunked_logprobs import Head, token_stats
from pttrainer.models import Params
from pttrainer.models.decoding.block_head import BlockHead
from pttrainer.runtime.distributed import sharding
from pttrainer.train_step.optimizer import transformation

LOSS = "speculation/head_loss"
"""Metric: the mean of −log p of the proposed positions' tokens, nats."""
OPTIMIZER = Optimizer(name="adamw", weight_decay=0.0)


class BlockState(NamedTuple):
    """The parts of the head that a step changes."""

    params: Params
    optimizer: Any


@dataclass(frozen=True)
class BlockLearner:
    """The head with its update rule. seed: of its first weights."""

    head: BlockHead
    updates: optax.GradientTransformationExtraArgs
    seed: int

    def new_state(self) -> BlockState:
        """Return the head before the first step."""
        params = self.head.init(jax.random.key(self.seed))
        return BlockState(params, self.updates.init(params))


def block_learner(spec: BlockDrafts, width: int, seed: int) -> BlockLearner:
    """Return the head that the spec names. width: of the model's hidden states."""
    head = BlockHead(spec.tokens, width)
    rate = optax.constant_schedule(spec.learning_rate)
    return BlockLearner(head, transformation.build(OPTIMIZER, rate, head.logical_axes()), seed)


def loss(
    head: BlockHead, params: Params, hidden_BTD: Array, head_VD: Array, part: Batch, step: Array, softcap: float | None
) -> Partial:
    """Return the sum of the loss over a micro-batch's proposals, and how many they are."""
    hidden_BTD, head_VD = lax.stop_gradient((hidden_BTD[..., : head.width], head_VD[:, : head.width]))
    (B, T), K = part.targets_BT.shape, head.tokens
    at_A = jnp.arange(-(-T // K)) * K + step % K
    at_AX = at_A[:, None] + jnp.arange(K + 1)  # the anchor's own target, and the K after it
    targets_BAX = jnp.pad(part.targets_BT, ((0, 0), (0, 2 * K)))[:, at_AX]
    counts_BAX = jnp.pad(part.mask_BT > 0, ((0, 0), (0, 2 * K)))[:, at_AX]
    mask_BAK = jnp.cumprod(counts_BAX, axis=-1, dtype=jnp.int32)[..., 1:]
    hidden_BAD = sharding.constrain_rows(hidden_BTD[:, jnp.minimum(at_A, T - 1)])
    table_VD = sharding.constrain_fitting(head_VD, ("vocab", None))  # as the embedding is gathered for its look-up
    states_BAKD = head.states(params, hidden_BAD, table_VD, targets_BAX[..., 0])
    flat = (x.reshape(B, -1, *x.shape[3:]) for x in (states_BAKD, targets_BAX[..., 1:], mask_BAK))
    states_BPD, targets_BP, mask_BP = flat
    stats = token_stats(states_BPD, head_VD, targets_BP, mask_BP, Head(softcap=softcap))
    return Partial(-jnp.sum(stats.logps_BT), jnp.sum(mask_BP).astype(jnp.float32), Mean)


def updated(learner: BlockLearner, state: BlockState, gradient: Params, count: Array) -> BlockState:
    """Return the head after its update; as it was if its gradient is not finite. gradient: of the sum of `count`."""
    mean = jax.tree.map(lambda x: x / jnp.maximum(count, 1.0), gradient)
    updates, optimizer = learner.updates.update(mean, state.optimizer, state.params)
    new = BlockState(optax.apply_updates(state.params, updates), optimizer)
    is_finite = jnp.isfinite(optax.tree.norm(mean))
    kept: BlockState = jax.tree.map(lambda a, b: jnp.where(is_finite, a, b), new, state)
    return kept
