"""Rows that share a prompt prefix, which is computed once for all of them, in training as in sampling.

Letters: P prompts, G rows that continue each, N = P·G rows, S tokens of a prompt, T tokens of a row, H head size.

The G rows of a prompt become one long row [P, S + G·T], so that every part of a layer except attention is unchanged,
and each device keeps the prompts of its own rows. Attention splits the row again: the prompt sees itself, and each of
the rows sees the prompt and itself, never its neighbours. Results and gradients equal those of N complete rows, up to
rounding: a prompt's keys and values receive the gradients of all its rows.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from pttrainer.batch import Prompts
from pttrainer.models.attention.dot_product import (
    Scoring,
    attend_packed,
    attend_shared,
    cached_mask,
    packed_mask,
    packed_window,
)
from pttrainer.models.attention.kv_cache import EMPTY, to_slots
from pttrainer.models.config import Window


class Masks(NamedTuple):
    """True where a query sees a key: prompts on themselves, rows on themselves, rows on their prompt.

    segments_PX: the same for machine code (`packed_attention`), if no layer has a window: 1 for tokens of the prompt,
    from 2 on for those of its rows, 0 for padding.
    """

    prompt_PSS: Array
    own_NTT: Array
    shared_NTS: Array
    segments_PX: Array


def joined(prompts_PS: Array, rows_NT: Array) -> Array:
    """Return prompts and rows as long rows [P, S + G·T]."""
    return jnp.concatenate([prompts_PS, rows_NT.reshape(prompts_PS.shape[0], -1)], axis=1)


def taken(joined_PXD: Array, prompts: Prompts, rows: int) -> Array:
    """Return the rows' part [N, T, D]."""
    S = prompts.tokens_PT.shape[1]
    D = joined_PXD.shape[-1]
    return joined_PXD[:, S:].reshape(rows, -1, D)


def masks(prompt_PSS: Array, prompts: Prompts, positions_NT: Array, segment_ids_NT: Array, window: Window) -> Masks:
    """Return the masks of one kind of layer. prompt_PSS: that of the prompts, in their window."""
    own_NTT = packed_mask(segment_ids_NT)
    if window is not None:
        own_NTT = packed_window(own_NTT, positions_NT, window)
    slots_PS = jnp.where(prompts.segment_ids_PT > 0, prompts.positions_PT, EMPTY)
    slots_NS = jnp.repeat(slots_PS, positions_NT.shape[0] // slots_PS.shape[0], axis=0)
    segments_PX = _segments(prompts.segment_ids_PT, segment_ids_NT)
    return Masks(prompt_PSS, own_NTT, cached_mask(positions_NT, slots_NS, window), segments_PX)


def _segments(segment_ids_PS: Array, segment_ids_NT: Array) -> Array:
    group = segment_ids_NT.shape[0] // segment_ids_PS.shape[0]
    numbers_N1 = 2 + jnp.arange(segment_ids_NT.shape[0])[:, None] % group
    return joined((segment_ids_PS > 0).astype(jnp.int32), jnp.where(segment_ids_NT > 0, numbers_N1, 0))


def attend_shared_prefix(
    q_PXNH: Array, k_PXKH: Array, v_PXKH: Array, visible: Masks, scoring: Scoring, *, is_causal: bool = False
) -> Array:
    """Attend within the long rows; the result has the shape of q. is_causal: within prompts, as in `attend_packed`."""
    (P, S, _), (N, T, _) = visible.prompt_PSS.shape, visible.own_NTT.shape

    def rows(x_PXKH: Array) -> Array:
        return x_PXKH[:, S:].reshape(N, T, *x_PXKH.shape[2:])

    q, k, v = (x_PXNH[:, :S] for x_PXNH in (q_PXNH, k_PXKH, v_PXKH))
    of_prompts = attend_packed(q, k, v, visible.prompt_PSS, scoring, is_causal=is_causal)
    own = to_slots(rows(k_PXKH), rows(v_PXKH))
    shared = to_slots(k, v)
    of_rows = attend_shared(rows(q_PXNH), own, visible.own_NTT, shared, visible.shared_NTS, scoring)
    return jnp.concatenate([of_prompts, of_rows.reshape(P, -1, *of_rows.shape[2:])], axis=1)
