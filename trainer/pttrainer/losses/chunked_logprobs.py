"""Log-probabilities of target tokens from hidden states: the one path through the output head.

Letters: B rows, T tokens, D model, V vocabulary, C tokens of a chunk, M chunks, N = B·C tokens.

Logits of B × T × V would be the largest array of a run, so they never exist, neither forward nor backward:
chunks of C tokens a row go through the head one after the other. Chunks without a token that counts are skipped:
they cost nothing. Everything after the product is float32. There are two ways through:

- `token_stats`: log-probs whose gradient may come from anything. Its backward pass computes a chunk's logits again.
- `token_loss`: the weighted loss of tokens, each of which depends on that token's log-prob alone (most losses). Then
  a chunk's slopes are known as soon as its log-probs are, so its gradients are computed with its logits at hand:
  three products in place of four.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_derivatives import CustomVJPPrimal

from pttrainer.batch import Batch
from pttrainer.losses.chunking import Chunks, chunk_size, chunks
from pttrainer.losses.head_gradient import gathered, head_gradient
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.layouts import row_major
from pttrainer.runtime.tpu_tiles import LANES


class TokenStats(NamedTuple):
    """Statistics per token, float32, 0 where the mask is 0.

    Gradients flow through `logps_BT`, through `entropy_BT` where the head says so, and in `token_loss` through `lse_BT`
    and `mean_BT` too. logps_BT:
    log-probability of the target; entropy_BT: of the predicted distribution, nats (0 unless requested); hit_BT: 1
    where no token is more likely than the target (always present after the head); lse_BT: log Σ exp of the logits;
    mean_BT: their mean over the vocabulary (None unless requested).
    """

    logps_BT: Array
    entropy_BT: Array
    hit_BT: Array | None = None
    lse_BT: Array | None = None
    mean_BT: Array | None = None


class Head(NamedTuple):
    """The options of the output head, hidden @ head.T.

    temperature divides the logits; softcap makes them softcap · tanh(x / softcap) first, as in Gemma 2; entropy
    requests that of the predictions; chunk is the number of tokens per row and chunk, by default as many as
    `chunk_size` says; level requests log Σ exp and mean of the logits; trains_entropy lets gradients
    flow through the entropy; sums_embedding: as in `largest_chunk`.
    """

    temperature: float = 1.0
    softcap: float | None = None
    entropy: bool = False
    chunk: int | None = None
    level: bool = False
    trains_entropy: bool = False
    sums_embedding: bool = False

    def sized(self, shape: tuple[int, ...], V: int, D: int = 0) -> Head:
        """Return the head with its chunk size set. D: as in `largest_chunk`."""
        B, T = shape
        return self._replace(chunk=self.chunk or chunk_size(B, T, V, D, sums_embedding=self.sums_embedding))

    def nothing(self, shape: tuple[int, ...]) -> TokenStats:
        """Return the stats of tokens that do not count."""
        zeros = jnp.zeros(shape, jnp.float32)
        return TokenStats(*[zeros] * (5 if self.level else 3))

    def chunks(self, mask_BT: Array) -> Chunks:
        """Return the chunks of a sized head."""
        assert self.chunk is not None
        return chunks(mask_BT, self.chunk)


PLAIN_HEAD = Head()

TokenLoss = Callable[[TokenStats, Batch], Array]
"""(stats, batch) -> weighted loss [B, T]; entry t must depend on entry t of the arguments alone."""


def token_stats(
    hidden_BTD: Array, head_VD: Array, targets_BT: Array, mask_BT: Array, head: Head = PLAIN_HEAD
) -> TokenStats:
    """Return log-probs (and entropies) of `targets_BT` under softmax(logits / temperature)."""
    return _token_stats(head.sized(targets_BT.shape, head_VD.shape[0]), hidden_BTD, head_VD, targets_BT, mask_BT)


def token_loss(
    loss_of: TokenLoss, head: Head, hidden_BTD: Array, head_VD: Array, batch: Batch
) -> tuple[Array, TokenStats]:
    """Return Σ of the batch's weighted losses, and the stats behind it, through which no gradient flows."""
    sized = head.sized(batch.targets_BT.shape, *head_VD.shape)
    loss, stats = _token_loss(loss_of, sized, hidden_BTD, head_VD, batch)
    return loss, lax.stop_gradient(stats)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _token_stats(head: Head, hidden_BTD: Array, head_VD: Array, targets_BT: Array, mask_BT: Array) -> TokenStats:
    return _forward(head, hidden_BTD, head_VD, targets_BT, mask_BT)[0]


def _forward(
    head: Head, hidden_BTD: Array, head_VD: Array, targets_BT: Array, mask_BT: Array
) -> tuple[TokenStats, tuple[Array, ...]]:
    def chunk_stats(inputs: tuple[Array, Array, Array]) -> tuple[TokenStats, Array]:
        hidden_BCD, targets_BC, _ = inputs
        return _stats(_logits(hidden_BCD, head_VD, head), targets_BC, head)

    def body(carry: None, inputs: Any) -> tuple[None, tuple[TokenStats, Array]]:
        zeros = jnp.zeros(inputs[1].shape, jnp.float32)
        counts = jnp.any(inputs[2] > 0)
        return carry, lax.cond(counts, chunk_stats, lambda _: (head.nothing(zeros.shape), zeros), inputs)

    parts, head_VD = head.chunks(mask_BT), gathered(head_VD)
    _, (stats, lse_MBC) = lax.scan(body, None, tuple(map(parts.split, (hidden_BTD, targets_BT, mask_BT))))
    return _joined(stats, parts, mask_BT), (hidden_BTD, head_VD, targets_BT, mask_BT, lse_MBC)


def _backward(head: Head, saved: tuple[Array, ...], cotangents: TokenStats) -> tuple[Array, Array, None, None]:
    hidden_BTD, head_VD, targets_BT, mask_BT, lse_MBC = saved
    trained = (cotangents.logps_BT, cotangents.entropy_BT) if head.trains_entropy else (cotangents.logps_BT,)
    slopes_BT = [jnp.where(mask_BT > 0, x, 0.0) for x in trained]
    parts = head.chunks(mask_BT)
    of_head = head_gradient(parts, head_VD)

    def chunk_gradient(head_grad: Array, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
        hidden_BCD, targets_BC, _, *slopes_BC, lse_BC = inputs
        logits_BCV = _logits(hidden_BCD, head_VD, head)
        slopes = TokenStats(slopes_BC[0], slopes_BC[1] if head.trains_entropy else jnp.zeros_like(slopes_BC[0]))
        d_logits_NV = _logits_gradient(logits_BCV, targets_BC, slopes, lse_BC, head).astype(head_VD.dtype)
        d_hidden_BCD = (d_logits_NV @ head_VD).reshape(hidden_BCD.shape)
        return of_head.add(head_grad, d_logits_NV, _tokens(hidden_BCD)), d_hidden_BCD

    def body(head_grad: Array, inputs: Any) -> Any:
        counts = jnp.any(inputs[2] > 0)
        return lax.cond(counts, chunk_gradient, lambda grad, x: (grad, jnp.zeros_like(x[0])), head_grad, inputs)

    split = tuple(map(parts.split, (hidden_BTD, targets_BT, mask_BT, *slopes_BT)))
    head_grad, d_hidden_MBCD = lax.scan(body, of_head.zeros(head_VD), (*split, lse_MBC))
    d_head_VD, d_hidden_BTD = of_head.total(head_grad, parts.join(d_hidden_MBCD).astype(hidden_BTD.dtype))
    return d_hidden_BTD, d_head_VD.astype(head_VD.dtype), None, None


_token_stats.defvjp(_forward, _backward)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _token_loss(
    loss_of: TokenLoss, head: Head, hidden_BTD: Array, head_VD: Array, batch: Batch
) -> tuple[Array, TokenStats]:
    stats = _forward(head, hidden_BTD, head_VD, batch.targets_BT, batch.mask_BT)[0]
    return jnp.sum(loss_of(stats, batch)), stats


def _loss_forward(
    loss_of: TokenLoss, head: Head, hidden: CustomVJPPrimal, head_weight: CustomVJPPrimal, batch: Any
) -> tuple[tuple[Array, TokenStats], tuple[Array, Array | None]]:
    """Return loss, stats, and the gradients of the loss. A head that is not trained gets none."""
    hidden_BTD, head_VD = hidden.value, head_weight.value
    batch = jax.tree.map(lambda x: x.value, batch, is_leaf=lambda x: isinstance(x, CustomVJPPrimal))
    parts, head_VD = head.chunks(batch.mask_BT), gathered(head_VD)
    of_head = head_gradient(parts, head_VD)

    def chunk_gradient(head_grad: Array | None, inputs: tuple[Array, Batch]) -> Any:
        hidden_BCD, part = inputs
        logits_BCV = _logits(hidden_BCD, head_VD, head)
        stats, lse_BC = _stats(logits_BCV, part.targets_BT, head)
        slopes = jax.grad(lambda of: jnp.sum(loss_of(of, part)))(stats)
        slopes = jax.tree.map(lambda slope_BC: jnp.where(part.mask_BT > 0, slope_BC, 0.0), slopes)
        d_logits_NV = _logits_gradient(logits_BCV, part.targets_BT, slopes, lse_BC, head).astype(head_VD.dtype)
        if head_grad is not None:
            head_grad = of_head.add(head_grad, d_logits_NV, _tokens(hidden_BCD))
        return head_grad, (stats, (d_logits_NV @ head_VD).reshape(hidden_BCD.shape))

    def body(head_grad: Array | None, inputs: tuple[Array, Batch]) -> Any:
        nothing = head.nothing(inputs[1].mask_BT.shape)
        skipped = lambda grad, x: (grad, (nothing, jnp.zeros_like(x[0])))  # noqa: E731
        return lax.cond(jnp.any(inputs[1].mask_BT > 0), chunk_gradient, skipped, head_grad, inputs)

    split = (parts.split(hidden_BTD), jax.tree.map(parts.split, batch))
    first = of_head.zeros(head_VD) if head_weight.perturbed else None
    head_grad, (stats, d_hidden_MBCD) = lax.scan(body, first, split)
    whole = _joined(stats, parts, batch.mask_BT)
    d_hidden_BTD, d_head_VD = parts.join(d_hidden_MBCD).astype(hidden_BTD.dtype), None
    if head_grad is not None:
        d_head_VD, d_hidden_BTD = of_head.total(head_grad, d_hidden_BTD)
        d_head_VD = d_head_VD.astype(head_VD.dtype)
    return (jnp.sum(loss_of(whole, batch)), whole), (d_hidden_BTD, d_head_VD)


def _loss_backward(
    loss_of: TokenLoss, head: Head, gradients: tuple[Array, Array | None], cotangents: tuple[Array, TokenStats]
) -> tuple[Array, Array | None, None]:
    scale = cotangents[0]
    d_hidden_BTD, d_head_VD = gradients
    d_head_VD = None if d_head_VD is None else d_head_VD * scale.astype(d_head_VD.dtype)
    return d_hidden_BTD * scale.astype(d_hidden_BTD.dtype), d_head_VD, None


_token_loss.defvjp(_loss_forward, _loss_backward, symbolic_zeros=True)


def _logits(hidden_BCD: Array, head_VD: Array, head: Head) -> Array:
    B, C, D = hidden_BCD.shape
    logits_NV = jnp.matmul(hidden_BCD.reshape(B * C, D), head_VD.T, preferred_element_type=jnp.float32)
    if head_VD.shape[0] % LANES and sharding.chip()[0] == "tpu":
        # Words that fill no lanes would be rows of tiles, and the gradient turned for one of its two products.
        logits_NV = row_major(logits_NV)
    logits_BCV = logits_NV.reshape(B, C, -1)
    if head.softcap is not None:
        logits_BCV = head.softcap * jnp.tanh(logits_BCV / head.softcap)
    return logits_BCV if head.temperature == 1.0 else logits_BCV * (1.0 / head.temperature)


def _stats(logits_BCV: Array, targets_BC: Array, head: Head) -> tuple[TokenStats, Array]:
    """Return the stats of a chunk, and log Σ exp of its logits."""
    lse_BC = jax.nn.logsumexp(logits_BCV, axis=-1)
    target_BC = jnp.take_along_axis(logits_BCV, targets_BC[..., None], axis=-1)[..., 0]
    entropy_BC = jnp.zeros_like(lse_BC)
    if head.entropy:
        logps_BCV = logits_BCV - lse_BC[..., None]
        entropy_BC = -jnp.sum(jnp.exp(logps_BCV) * logps_BCV, axis=-1)
    # The largest logit is what log Σ exp is computed from: comparing with it costs nothing.
    hit_BC = (target_BC >= jnp.max(logits_BCV, axis=-1)).astype(jnp.float32)
    level = (lse_BC, jnp.mean(logits_BCV, axis=-1)) if head.level else ()
    return TokenStats(target_BC - lse_BC, entropy_BC, hit_BC, *level), lse_BC


def _logits_gradient(logits_BCV: Array, targets_BC: Array, slopes: TokenStats, lse_BC: Array, head: Head) -> Array:
    """Return the gradient with respect to the logits, [N, V].

    d logp / d logits = onehot(target) − softmax(logits); d capped / d logits = 1 − tanh²; d lse / d logits is the
    softmax, d mean / d logits 1 / V, d entropy / d logits −softmax · (log softmax + entropy). Rows and
    tokens are one axis: contracting over two makes XLA transpose the logits first.
    """
    V = logits_BCV.shape[-1]
    inverse_temperature = 1.0 / head.temperature
    softmax_BCV = jnp.exp(logits_BCV - lse_BC[..., None])
    is_target_BCV = targets_BC[..., None] == jnp.arange(V)
    d_logits_BCV = (is_target_BCV - softmax_BCV) * (slopes.logps_BT * inverse_temperature)[..., None]
    if slopes.lse_BT is not None and slopes.mean_BT is not None:
        d_logits_BCV += softmax_BCV * (slopes.lse_BT * inverse_temperature)[..., None]
        d_logits_BCV += (slopes.mean_BT * (inverse_temperature / V))[..., None]
    if head.trains_entropy:
        logps_BCV = logits_BCV - lse_BC[..., None]
        entropy_BC1 = -jnp.sum(softmax_BCV * logps_BCV, axis=-1, keepdims=True)
        d_entropy_BCV = -softmax_BCV * (logps_BCV + entropy_BC1)
        d_logits_BCV += d_entropy_BCV * (slopes.entropy_BT * inverse_temperature)[..., None]
    if head.softcap is not None:
        d_logits_BCV *= 1.0 - (logits_BCV / (inverse_temperature * head.softcap)) ** 2
    return d_logits_BCV.reshape(-1, V)


def _tokens(hidden_BCD: Array) -> Array:
    """Return the hidden states as [N, D]."""
    return hidden_BCD.reshape(-1, hidden_BCD.shape[-1])


def _joined(stats: TokenStats, parts: Chunks, mask_BT: Array) -> TokenStats:
    """Return the stats of chunks as those of rows, 0 where nothing counts."""
    joined: TokenStats = jax.tree.map(lambda x: jnp.where(mask_BT > 0, parts.join(x), 0.0), stats)
    return joined
