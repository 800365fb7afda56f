"""Log-probabilities of target tokens from hidden states: the one path through the output head.

Letters: B rows, T tokens, D model, V vocabulary, C tokens of a chunk, M chunks.

Logits of B × T × V would be the largest array of a run, so they never exist, neither forward nor backward:
chunks of C tokens a row go through the head one after the other, and the backward pass computes a chunk's
logits again. Tokens that do not count (mask 0: prompts, padding) are sorted behind those that do, and chunks
that hold none that counts are skipped: they cost nothing. Everything after the product is float32.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from pttrainer import sharding

CHUNK_ELEMENTS = 2**22
"""Logits that exist at once per device (16 MB): smaller chunks make thin products, larger ones only cost memory."""


class TokenStats(NamedTuple):
    """Per token, float32, 0 where the mask is 0. Gradients flow through `logps_BT` only.

    logps_BT: log-probability of the target; entropy_BT: of the predicted distribution, nats (0 if not asked for).
    """

    logps_BT: Array
    entropy_BT: Array


def token_stats(
    hidden_BTD: Array,
    head_VD: Array,
    targets_BT: Array,
    mask_BT: Array,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    softcap: float | None = None,
    chunk: int | None = None,
) -> TokenStats:
    """Log-probs (and entropies) of `targets_BT` under softmax(logits / temperature), logits = hidden @ head.T.

    softcap: logits are softcap · tanh(logits / softcap) first, as Gemma 2's are. chunk: tokens per row and chunk;
    unset, as many as keep a chunk's logits near CHUNK_ELEMENTS.
    """
    B, T = targets_BT.shape
    size = chunk or chunk_size(B, T, head_VD.shape[0])
    return _token_stats((1.0 / temperature, entropy, softcap, size), hidden_BTD, head_VD, targets_BT, mask_BT)


def chunk_size(B: int, T: int, V: int) -> int:
    """Tokens per row and chunk: a power of two, so that few lengths leave a remainder."""
    size = 1
    while size * 2 <= T and size * 2 * B * V <= CHUNK_ELEMENTS * sharding.devices():
        size *= 2
    return size


_Static = tuple[float, bool, float | None, int]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _token_stats(static: _Static, hidden_BTD: Array, head_VD: Array, targets_BT: Array, mask_BT: Array) -> TokenStats:
    return _forward(static, hidden_BTD, head_VD, targets_BT, mask_BT)[0]


def _forward(
    static: _Static, hidden_BTD: Array, head_VD: Array, targets_BT: Array, mask_BT: Array
) -> tuple[TokenStats, tuple[Array, ...]]:
    inverse_temperature, entropy, softcap, C = static
    T = targets_BT.shape[1]
    order_BT, back_BT = _counting_first(mask_BT)

    def chunk_stats(inputs: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        hidden_BCD, targets_BC, _ = inputs
        logits_BCV = _logits(hidden_BCD, head_VD, inverse_temperature, softcap)
        lse_BC = jax.nn.logsumexp(logits_BCV, axis=-1)
        target_BC = jnp.take_along_axis(logits_BCV, targets_BC[..., None], axis=-1)[..., 0]
        entropy_BC = jnp.zeros_like(lse_BC)
        if entropy:
            logps_BCV = logits_BCV - lse_BC[..., None]
            entropy_BC = -jnp.sum(jnp.exp(logps_BCV) * logps_BCV, axis=-1)
        return target_BC - lse_BC, lse_BC, entropy_BC

    def body(carry: None, inputs: Any) -> tuple[None, tuple[Array, Array, Array]]:
        zeros = jnp.zeros(inputs[1].shape, jnp.float32)
        counts = jnp.any(inputs[2] > 0)
        return carry, lax.cond(counts, chunk_stats, lambda _: (zeros, zeros, zeros), inputs)

    chunks = tuple(_to_chunks(_take(x, order_BT), C) for x in (hidden_BTD, targets_BT, mask_BT))
    _, (logps_MBC, lse_MBC, entropy_MBC) = lax.scan(body, None, chunks)
    counts_BT = mask_BT > 0
    logps_BT = jnp.where(counts_BT, _take(_from_chunks(logps_MBC, T), back_BT), 0.0)
    entropy_BT = jnp.where(counts_BT, _take(_from_chunks(entropy_MBC, T), back_BT), 0.0)
    return TokenStats(logps_BT, entropy_BT), (hidden_BTD, head_VD, targets_BT, mask_BT, lse_MBC)


def _backward(static: _Static, saved: tuple[Array, ...], cotangents: TokenStats) -> tuple[Array, Array, None, None]:
    """d logp / d logits = onehot(target) − softmax(logits), chunk by chunk; d capped / d logits = 1 − tanh²."""
    inverse_temperature, _, softcap, C = static
    hidden_BTD, head_VD, targets_BT, mask_BT, lse_MBC = saved
    T, V = targets_BT.shape[1], head_VD.shape[0]
    order_BT, back_BT = _counting_first(mask_BT)
    slope_BT = jnp.where(mask_BT > 0, cotangents.logps_BT, 0.0) * inverse_temperature

    def chunk_gradient(head_grad_VD: Array, inputs: tuple[Array, Array, Array, Array, Array]) -> tuple[Array, Array]:
        hidden_BCD, targets_BC, _, slope_BC, lse_BC = inputs
        logits_BCV = _logits(hidden_BCD, head_VD, inverse_temperature, softcap)
        softmax_BCV = jnp.exp(logits_BCV - lse_BC[..., None])
        is_target_BCV = targets_BC[..., None] == jnp.arange(V)
        d_logits_BCV = (is_target_BCV - softmax_BCV) * slope_BC[..., None]
        if softcap is not None:
            d_logits_BCV *= 1.0 - (logits_BCV / (inverse_temperature * softcap)) ** 2
        d_logits_BCV = d_logits_BCV.astype(head_VD.dtype)
        # Rows and tokens as one axis: contracting over two makes XLA transpose the logits first.
        d_logits_NV, hidden_ND = d_logits_BCV.reshape(-1, V), hidden_BCD.reshape(-1, hidden_BCD.shape[-1])
        d_hidden_ND = d_logits_NV @ head_VD
        d_head_VD = jnp.matmul(d_logits_NV.T, hidden_ND, preferred_element_type=jnp.float32)
        return head_grad_VD + d_head_VD, d_hidden_ND.reshape(hidden_BCD.shape)

    def body(head_grad_VD: Array, inputs: Any) -> Any:
        counts = jnp.any(inputs[2] > 0)
        return lax.cond(counts, chunk_gradient, lambda grad, x: (grad, jnp.zeros_like(x[0])), head_grad_VD, inputs)

    chunks = tuple(_to_chunks(_take(x, order_BT), C) for x in (hidden_BTD, targets_BT, mask_BT, slope_BT))
    d_head_VD, d_hidden_MBCD = lax.scan(body, jnp.zeros(head_VD.shape, jnp.float32), (*chunks, lse_MBC))
    d_hidden_BTD = _take(_from_chunks(d_hidden_MBCD, T), back_BT)
    return d_hidden_BTD.astype(hidden_BTD.dtype), d_head_VD.astype(head_VD.dtype), None, None


_token_stats.defvjp(_forward, _backward)


def _logits(hidden_BCD: Array, head_VD: Array, inverse_temperature: float, softcap: float | None) -> Array:
    B, C, D = hidden_BCD.shape
    logits_NV = jnp.matmul(hidden_BCD.reshape(B * C, D), head_VD.T, preferred_element_type=jnp.float32)
    logits_BCV = logits_NV.reshape(B, C, -1)
    if softcap is not None:
        logits_BCV = softcap * jnp.tanh(logits_BCV / softcap)
    return logits_BCV if inverse_temperature == 1.0 else logits_BCV * inverse_temperature


def _counting_first(mask_BT: Array) -> tuple[Array, Array]:
    """A permutation of each row that puts tokens that count first, and its inverse."""
    order_BT = jnp.argsort(mask_BT <= 0, axis=1, stable=True)
    return order_BT, jnp.argsort(order_BT, axis=1)


def _take(x_BTX: Array, order_BT: Array) -> Array:
    index = order_BT if x_BTX.ndim == 2 else order_BT[..., None]
    return jnp.take_along_axis(x_BTX, index, axis=1)


def _to_chunks(x_BTX: Array, C: int) -> Array:
    """[B, T, …] to [M, B, C, …]; the last chunk is filled up with zeros, which do not count."""
    B, T = x_BTX.shape[:2]
    M = -(-T // C)
    padded = jnp.pad(x_BTX, ((0, 0), (0, M * C - T)) + ((0, 0),) * (x_BTX.ndim - 2))
    return jnp.moveaxis(padded.reshape(B, M, C, *x_BTX.shape[2:]), 1, 0)


def _from_chunks(x_MBCX: Array, T: int) -> Array:
    """[M, B, C, …] to [B, T, …]."""
    M, B, C = x_MBCX.shape[:3]
    return jnp.moveaxis(x_MBCX, 0, 1).reshape(B, M * C, *x_MBCX.shape[3:])[:, :T]
