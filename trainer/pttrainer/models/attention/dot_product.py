"""Scaled dot-product attention with grouped queries: over a packed row, and over a cache.

Letters: B rows, T query tokens, S key slots, N query heads, K key/value heads, R = N/K queries per key head, Q = T·R
queries per key head of all tokens, H head size. Scores and softmax are float32. Positions and segments decide which
keys a query sees, never the value of a token.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pttrainer.models.attention.kv_cache import LayerKV
from pttrainer.models.config import Chunk, Window
from pttrainer.models.config.attention import MAX_SCORES, queries_at_once
from pttrainer.runtime.distributed import sharding

MASKED_SCORE = -1e30
"""Score of a masked key: finite, so that a row without any visible key is not NaN."""
LEAST_PART = 256
"""Queries that a CPU attends together at least: two parts of 128 save 2% of a step, and take 2 s longer to compile."""
Slots = tuple[LayerKV, Array]
"""Keys and values of a cache, and where each token sees them [B, T, S]."""


class Scoring(NamedTuple):
    """How scores become weights: scale, soft cap, and each head's learned attention sink."""

    scale: float
    softcap: float | None = None
    sinks_N: Array | None = None


def packed_mask(segment_ids_BT: Array) -> Array:
    """Return [B, T, T], true where query t sees key s: not later, and of the same example."""
    T = segment_ids_BT.shape[1]
    causal = jnp.tril(jnp.ones((T, T), bool))
    return causal & (segment_ids_BT[:, :, None] == segment_ids_BT[:, None, :])


def packed_window(mask_BTT: Array, positions_BT: Array, window: int | Chunk) -> Array:
    """Return the mask of a local layer."""
    return mask_BTT & _in_window(positions_BT, positions_BT, window)


def _in_window(queries_BT: Array, keys_BS: Array, window: int | Chunk) -> Array:
    """Return [B, T, S], true where a key's position is not before the query's window, or chunk."""
    if isinstance(window, Chunk):
        return queries_BT[:, :, None] // window.size == keys_BS[:, None, :] // window.size
    return queries_BT[:, :, None] - keys_BS[:, None, :] < window


def cached_mask(positions_BT: Array, slots_BS: Array, window: Window = None) -> Array:
    """Return [B, T, S], true where the slot is filled, its position is not after the query's, and in its window."""
    visible = (slots_BS[:, None, :] >= 0) & (slots_BS[:, None, :] <= positions_BT[:, :, None])
    if window is None:
        return visible
    return visible & _in_window(positions_BT, slots_BS, window)


def attend_packed(
    q_BTNH: Array, k_BTKH: Array, v_BTKH: Array, mask_BTT: Array, scoring: Scoring, *, is_causal: bool = False
) -> Array:
    """Attend within a row; the result is [B, T, N, H].

    Scores of long rows do not exist at once: blocks of queries follow each other, and are recomputed in the
    backward pass. is_causal: the mask lets no query see a later key, so on CPUs shorter rows are attended part by part,
    each to the keys up to its end.
    """
    B, T, N, _ = q_BTNH.shape
    block = query_block(B, T, N)
    if block == T:
        part = T // causal_parts(T) if is_causal else T
        spans = [(slice(end - part, end), slice(end)) for end in range(part, T + 1, part)]
        outs = [_attend(q_BTNH[:, of], k_BTKH[:, to], v_BTKH[:, to], mask_BTT[:, of, to], scoring) for of, to in spans]
        return jnp.concatenate(outs, axis=1)

    @jax.checkpoint
    def of_block(inputs: tuple[Array, Array]) -> Array:
        return _attend(inputs[0], k_BTKH, v_BTKH, inputs[1], scoring)

    blocks = (_to_blocks(q_BTNH, block), _to_blocks(mask_BTT, block))
    return jnp.moveaxis(jax.lax.map(of_block, blocks), 0, 1).reshape(B, T, N, -1)


def causal_parts(T: int) -> int:
    """Return in how many parts of equal length a row of so many tokens is attended: 4, 2 or 1 on CPUs, else 1."""
    if sharding.chip()[0] != "cpu" or sharding.is_split("sequence"):
        return 1
    return next((parts for parts in (4, 2) if T % parts == 0 and parts * LEAST_PART <= T), 1)


def query_block(B: int, T: int, N: int) -> int:
    """Return how many queries of a row are scored at once: T if all fit `MAX_SCORES`, else repeatedly halved."""
    return queries_at_once(T, B * N * T, MAX_SCORES * sharding.devices())


def _to_blocks(x_BTX: Array, block: int) -> Array:
    """Reshape [B, T, …] to [T / block, B, block, …]."""
    B, T = x_BTX.shape[:2]
    return jnp.moveaxis(x_BTX.reshape(B, T // block, block, *x_BTX.shape[2:]), 1, 0)


def _attend(q_BTNH: Array, k_BSKH: Array, v_BSKH: Array, mask_BTS: Array, scoring: Scoring) -> Array:
    B, T, N, H = q_BTNH.shape
    K = k_BSKH.shape[2]
    q_BKRTH = scaled(q_BTNH, scoring).reshape(B, T, K, N // K, H).transpose(0, 2, 3, 1, 4)
    k_BKSH, v_BKSH = k_BSKH.transpose(0, 2, 1, 3), v_BSKH.transpose(0, 2, 1, 3)
    scores = jnp.einsum("bkrth,bksh->bkrts", q_BKRTH, k_BKSH, preferred_element_type=jnp.float32)
    scores = jnp.where(mask_BTS[:, None, None], _capped(scores, scoring), MASKED_SCORE)
    sinks = None if scoring.sinks_N is None else scoring.sinks_N.reshape(1, K, N // K, 1, 1)
    weights = _softmax(scores, sinks).astype(v_BSKH.dtype)
    out = jnp.einsum("bkrts,bksh->bkrth", weights, v_BKSH)
    return out.transpose(0, 3, 1, 2, 4).reshape(B, T, N, -1)


def attend_cached(q_BTNH: Array, own: LayerKV, own_mask_BTS: Array, scoring: Scoring) -> Array:
    """Attend over the filled slots of a cache; the result is [B, T, N, H]."""
    K = own.k_BKHS.shape[1]
    q_BKQH = _by_key_head(scaled(q_BTNH, scoring), K)
    scores = _scores(q_BKQH, own.k_BKHS, own_mask_BTS, scoring)
    weights = _softmax(scores, _sinks_by_key_head(scoring, q_BTNH.shape, K)).astype(own.v_BKSH.dtype)
    return _by_token(jnp.einsum("bkqs,bksh->bkqh", weights, own.v_BKSH), q_BTNH.shape)


def attend_shared(
    q_BTNH: Array, own: LayerKV, own_mask_BTS: Array, prompt: LayerKV, prompt_mask_BTS: Array, scoring: Scoring
) -> Array:
    """Attend over the prompt's slots, which G rows share, and over a row's own; the result is [B, T, N, H].

    The prompt's keys are read once per prompt: its G samples are G times as many queries of one batch row.
    """
    B = q_BTNH.shape[0]
    P, K, prompt_slots, _ = prompt.v_BKSH.shape
    q_BKQH = _by_key_head(scaled(q_BTNH, scoring), K)
    shared = _scores(_to_prompts(q_BKQH, P), prompt.k_BKHS, None, scoring)
    shared = _hide(_from_prompts(shared, B), prompt_mask_BTS)
    scores = jnp.concatenate([shared, _scores(q_BKQH, own.k_BKHS, own_mask_BTS, scoring)], axis=-1)
    weights = _softmax(scores, _sinks_by_key_head(scoring, q_BTNH.shape, K)).astype(own.v_BKSH.dtype)
    of_prompt, of_own = weights[..., :prompt_slots], weights[..., prompt_slots:]
    out = _from_prompts(jnp.einsum("bkqs,bksh->bkqh", _to_prompts(of_prompt, P), prompt.v_BKSH), B)
    return _by_token(out + jnp.einsum("bkqs,bksh->bkqh", of_own, own.v_BKSH), q_BTNH.shape)


def scaled(q_BTNH: Array, scoring: Scoring) -> Array:
    """Return the queries times the scale of their scores."""
    return q_BTNH * jnp.asarray(scoring.scale, q_BTNH.dtype)


def _capped(scores: Array, scoring: Scoring) -> Array:
    return scores if scoring.softcap is None else scoring.softcap * jnp.tanh(scores / scoring.softcap)


def _softmax(scores: Array, sinks: Array | None) -> Array:
    """Return the softmax over the last axis. A sink is one more score, whose weight is discarded."""
    if sinks is None:
        return jax.nn.softmax(scores, axis=-1)
    sinks = jnp.broadcast_to(sinks.astype(scores.dtype), (*scores.shape[:-1], 1))
    return jax.nn.softmax(jnp.concatenate([scores, sinks], axis=-1), axis=-1)[..., :-1]


def _sinks_by_key_head(scoring: Scoring, shape: tuple[int, ...], K: int) -> Array | None:
    """Return [1, K, Q, 1], in the order of `_by_key_head`."""
    if scoring.sinks_N is None:
        return None
    _, T, N, _ = shape
    return jnp.tile(scoring.sinks_N.reshape(1, K, N // K, 1), (1, 1, T, 1))


def _by_key_head(q_BTNH: Array, K: int) -> Array:
    """Return [B, K, Q, H] with Q = T·R: all queries that read one key head, token by token."""
    B, T, N, H = q_BTNH.shape
    return q_BTNH.reshape(B, T, K, N // K, H).transpose(0, 2, 1, 3, 4).reshape(B, K, T * (N // K), H)


def _by_token(out_BKQH: Array, shape: tuple[int, ...]) -> Array:
    B, T, N, _ = shape
    K, H = out_BKQH.shape[1], out_BKQH.shape[3]
    return out_BKQH.reshape(B, K, T, N // K, H).transpose(0, 2, 1, 3, 4).reshape(B, T, N, H)


def _scores(q_BKQH: Array, k_BKHS: Array, mask_BTS: Array | None, scoring: Scoring) -> Array:
    scores = _capped(jnp.einsum("bkqh,bkhs->bkqs", q_BKQH, k_BKHS, preferred_element_type=jnp.float32), scoring)
    return scores if mask_BTS is None else _hide(scores, mask_BTS)


def _hide(scores_BKQS: Array, mask_BTS: Array) -> Array:
    repeats = scores_BKQS.shape[2] // mask_BTS.shape[1]
    return jnp.where(jnp.repeat(mask_BTS, repeats, axis=1)[:, None], scores_BKQS, MASKED_SCORE)


def _to_prompts(x_BKQX: Array, P: int) -> Array:
    """Reshape [P·G, K, Q, X] to [P, K, G·Q, X]."""
    B, K, Q, X = x_BKQX.shape
    return x_BKQX.reshape(P, B // P, K, Q, X).transpose(0, 2, 1, 3, 4).reshape(P, K, (B // P) * Q, X)


def _from_prompts(x_PKQX: Array, B: int) -> Array:
    """Invert `_to_prompts`."""
    P, K, GQ, X = x_PKQX.shape
    G = B // P
    return x_PKQX.reshape(P, K, G, GQ // G, X).transpose(0, 2, 1, 3, 4).reshape(B, K, GQ // G, X)
