"""The gated delta rule (arXiv 2412.06464): a state of fixed size per row in place of keys and values.

    S_t = exp(g_t) · S_{t-1} + k_t · β_t · (v_t − k_t · exp(g_t) · S_{t-1})        o_t = q_t · S_t

Training computes chunks of tokens: within a chunk, one triangular system gives all corrections at once; between chunks
only the state goes on. Decoding computes tokens one by one. Before it, queries, keys and values pass a short causal
convolution. Neither state nor convolution reaches from one example of a packed row into the next.

Letters: B rows, T tokens, C channels of the convolution, W its width, K key heads, V value heads, H size of a key,
U size of a value, X chunks, Z tokens of a chunk.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from pttrainer.models.config import Delta

CHUNK = 64
"""Tokens of a chunk: its triangular systems cost T · Z, its products with the state T · H."""
NORM_EPSILON = 1e-6


class DeltaState(NamedTuple):
    """What a row remembers: the last inputs of the convolution, and the state, float32."""

    inputs_BWC: Array
    state_BVHU: Array


class _Parts(NamedTuple):
    """Queries, keys and values by value head, [B, T, V, …], float32; logarithms of decays; rates of correction."""

    q: Array
    k: Array
    v: Array
    g_BTV: Array
    beta_BTV: Array


def empty(of: Delta, rows: int, dtype: jnp.dtype | str) -> DeltaState:
    """Return the states of rows without any token."""
    state = jnp.zeros((rows, of.value_heads, of.key_dim, of.value_dim), jnp.float32)
    return DeltaState(jnp.zeros((rows, of.width - 1, of.channels), dtype), state)


def packed(of: Delta, mixed_BTC: Array, g_BTV: Array, beta_BTV: Array, conv_WC: Array, segments_BT: Array) -> Array:
    """Return the results [B, T, V, U] of packed rows."""
    B, _, C = mixed_BTC.shape
    before_BWC = jnp.zeros((B, of.width - 1, C), mixed_BTC.dtype)
    convolved_BTC = _convolved(mixed_BTC, before_BWC, conv_WC, segments_BT)
    state_BVHU = jnp.zeros((B, of.value_heads, of.key_dim, of.value_dim), jnp.float32)
    out_BTVU, _ = _chunked(_parts(of, convolved_BTC, g_BTV, beta_BTV), state_BVHU, segments_BT)
    return out_BTVU.astype(mixed_BTC.dtype)


def cached(
    of: Delta, mixed_BTC: Array, g_BTV: Array, beta_BTV: Array, conv_WC: Array, before: DeltaState, is_token_BT: Array
) -> tuple[Array, DeltaState]:
    """Return the results of new tokens, and the states after them. Padding, behind a row's tokens, changes neither."""
    g_BTV, beta_BTV = (jnp.where(is_token_BT[..., None], x, 0.0) for x in (g_BTV, beta_BTV))
    convolved_BTC = _convolved(mixed_BTC, before.inputs_BWC, conv_WC, None)
    parts = _parts(of, convolved_BTC, g_BTV, beta_BTV)
    if mixed_BTC.shape[1] == 1:
        out_BTVU, state_BVHU = _one_token(parts, before.state_BVHU)
    else:
        out_BTVU, state_BVHU = _chunked(parts, before.state_BVHU, None)
    both_BTC = jnp.concatenate([before.inputs_BWC, mixed_BTC.astype(before.inputs_BWC.dtype)], axis=1)
    counts_B = jnp.sum(is_token_BT, axis=1)

    def last(x_TC: Array, count: Array) -> Array:
        return lax.dynamic_slice_in_dim(x_TC, count, of.width - 1)

    return out_BTVU.astype(mixed_BTC.dtype), DeltaState(jax.vmap(last)(both_BTC, counts_B), state_BVHU)


def _convolved(x_BTC: Array, before_BWC: Array, conv_WC: Array, segments_BT: Array | None) -> Array:
    """Return silu of each channel's causal convolution, float32. segments_BT: None if all tokens are of one example."""
    T, W = x_BTC.shape[1], conv_WC.shape[0]
    inputs = jnp.concatenate([before_BWC.astype(x_BTC.dtype), x_BTC], axis=1).astype(jnp.float32)
    out_BTC = jnp.zeros(x_BTC.shape, jnp.float32)
    for place in range(W):
        shifted_BTC = inputs[:, place : place + T]
        if segments_BT is not None and place < W - 1:
            earlier_BT = jnp.pad(segments_BT, ((0, 0), (W - 1 - place, 0)), constant_values=-1)[:, :T]
            shifted_BTC = jnp.where((earlier_BT == segments_BT)[..., None], shifted_BTC, 0.0)
        out_BTC = out_BTC + shifted_BTC * conv_WC[place].astype(jnp.float32)
    return jax.nn.silu(out_BTC)


def _parts(of: Delta, convolved_BTC: Array, g_BTV: Array, beta_BTV: Array) -> _Parts:
    """Return queries and keys of length 1, repeated for the value heads that share them, and values."""
    B, T, _ = convolved_BTC.shape
    keys = of.key_heads * of.key_dim
    q_BTX, k_BTX, v_BTX = jnp.split(convolved_BTC, [keys, 2 * keys], axis=-1)

    def heads(x_BTX: Array) -> Array:
        x_BTKH = x_BTX.reshape(B, T, of.key_heads, of.key_dim)
        x_BTKH = x_BTKH * lax.rsqrt(jnp.sum(x_BTKH * x_BTKH, axis=-1, keepdims=True) + NORM_EPSILON)
        return jnp.repeat(x_BTKH, of.value_heads // of.key_heads, axis=2)

    v_BTVU = v_BTX.reshape(B, T, of.value_heads, of.value_dim)
    return _Parts(heads(q_BTX) * of.key_dim**-0.5, heads(k_BTX), v_BTVU, g_BTV, beta_BTV)


def _one_token(parts: _Parts, state_BVHU: Array) -> tuple[Array, Array]:
    q_BVH, k_BVH, v_BVU, g_BV, beta_BV = (x[:, 0] for x in parts)
    state_BVHU = state_BVHU * jnp.exp(g_BV)[..., None, None]
    known_BVU = jnp.einsum("bvh,bvhu->bvu", k_BVH, state_BVHU)
    correction_BVU = (v_BVU - known_BVU) * beta_BV[..., None]
    state_BVHU = state_BVHU + k_BVH[..., None] * correction_BVU[..., None, :]
    return jnp.einsum("bvh,bvhu->bvu", q_BVH, state_BVHU)[:, None], state_BVHU


def _chunked(parts: _Parts, state_BVHU: Array, segments_BT: Array | None) -> tuple[Array, Array]:
    """Return the results and the last state. segments_BT: None if the given state and all tokens are of one example."""
    T = parts.q.shape[1]
    q, k, v = (_in_chunks(x) for x in parts[:3])  # [X, B, V, Z, …]
    g_XBVZ, beta_XBVZ = (_in_chunks(x[..., None])[..., 0] for x in parts[3:])
    is_same, continues, is_last, goes_on = _examples(segments_BT, g_XBVZ.shape)
    # From each example's first token of the chunk: differences of a sum over those before it would lose digits.
    total_XBVZ = jnp.sum(jnp.where(is_same, g_XBVZ[..., None, :], 0.0), axis=-1)
    # Of tokens behind, the logarithm would be positive, and might overflow before it is masked.
    decay = jnp.exp(jnp.where(is_same, total_XBVZ[..., :, None] - total_XBVZ[..., None, :], -jnp.inf))
    weighed = k * beta_XBVZ[..., None]
    between = jnp.einsum("xbvzh,xbvyh->xbvzy", weighed, k) * decay
    scores = jnp.einsum("xbvzh,xbvyh->xbvzy", q, k) * decay
    since = (jnp.exp(total_XBVZ) * continues)[..., None]
    wanted = jnp.concatenate([v * beta_XBVZ[..., None], weighed * since], axis=-1)
    new, known = jnp.split(_solved(between, wanted), [v.shape[-1]], axis=-1)
    last = total_XBVZ[..., -1:]
    kept = k * jnp.exp(jnp.where(is_last, last - total_XBVZ, -jnp.inf))[..., None]  # as above, of other examples
    left = jnp.exp(last) * goes_on

    def chunk(state: Array, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
        q, scores, new, known, kept, left = inputs
        corrected = new - known @ state
        out = q @ state + scores @ corrected
        return state * left[..., None] + jnp.swapaxes(kept, -1, -2) @ corrected, out

    state_BVHU, out = lax.scan(chunk, state_BVHU, (q * since, scores, new, known, kept, left))
    X, B, V, Z, U = out.shape
    return out.transpose(1, 0, 3, 2, 4).reshape(B, X * Z, V, U)[:, :T], state_BVHU


@jax.custom_vjp
def _solved(lower: Array, wanted: Array) -> Array:
    """Solve (1 + what is below the diagonal) · x = wanted by products, which beat substitution row by row."""
    return _inverse(lower) @ wanted


def _solved_forward(lower: Array, wanted: Array) -> tuple[Array, tuple[Array, Array]]:
    inverse = _inverse(lower)
    solved = inverse @ wanted
    return solved, (inverse, solved)


def _solved_backward(kept: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    inverse, solved = kept
    of_wanted = jnp.swapaxes(inverse, -1, -2) @ gradient
    return jnp.tril(-of_wanted @ jnp.swapaxes(solved, -1, -2), -1), of_wanted


_solved.defvjp(_solved_forward, _solved_backward)


def _inverse(lower: Array) -> Array:
    """Return the inverse of 1 + what is below the diagonal of each [Z, Z].

    That of a block of 8 is a product, since its eighth power is zero; two blocks then give one of twice the size.
    """
    size, one = 8, jnp.eye(8, dtype=lower.dtype)
    power = -jnp.tril(_diagonal_blocks(lower, size), -1)
    inverse = one + power
    for _ in range(2):
        power = power @ power
        inverse = inverse @ (one + power)
    while size < lower.shape[-1]:
        between = _diagonal_blocks(lower, 2 * size)[..., size:, :size]
        first, second = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
        upper = jnp.concatenate([first, jnp.zeros_like(first)], axis=-1)
        inverse = jnp.concatenate([upper, jnp.concatenate([-second @ (between @ first), second], axis=-1)], axis=-2)
        size *= 2
    return inverse[..., 0, :, :]


def _diagonal_blocks(square: Array, size: int) -> Array:
    """Return the blocks [..., Z / size, size, size] on the diagonal of [..., Z, Z].

    As slices: with `jnp.diagonal`, jaxlib 0.10.2 aborts for several rows on a CPU (docs/findings/compilers.md).
    """
    starts = range(0, square.shape[-1], size)
    return jnp.stack([square[..., i : i + size, i : i + size] for i in starts], axis=-3)


def _in_chunks(x_BTVX: Array) -> Array:
    """Reshape [B, T, V, …] to [X, B, V, Z, …], filled up with zeros, which change no state."""
    B, T, V, size = x_BTVX.shape
    filled = jnp.pad(x_BTVX, ((0, 0), (0, -T % CHUNK), (0, 0), (0, 0)))
    return filled.reshape(B, -1, CHUNK, V, size).transpose(1, 0, 3, 2, 4)


def _examples(segments_BT: Array | None, shape: tuple[int, ...]) -> tuple[Array, Array, Array, Array]:
    """Return where tokens of a chunk see each other, continue the state before it, and go into the state behind it.

    The last: whether that state continues the one before.
    """
    X, B, _, Z = shape
    causal = jnp.tril(jnp.ones((Z, Z), bool))
    if segments_BT is None:
        one = jnp.ones((1, 1, 1, 1), jnp.float32)
        return causal, one, one > 0, one
    filled = jnp.pad(segments_BT, ((0, 0), (0, X * Z - segments_BT.shape[1])), mode="edge")
    of_token = filled.reshape(B, X, 1, Z).swapaxes(0, 1)
    of_last = of_token[..., -1:]
    before = jnp.concatenate([jnp.full_like(of_last[:1], -1), of_last[:-1]])
    is_same = causal & (of_token[..., :, None] == of_token[..., None, :])

    def share(is_true: Array) -> Array:
        return is_true.astype(jnp.float32)

    return is_same, share(of_token == before), of_token == of_last, share(of_last == before)
