"""Run prompts through a model, in batches: their keys, values and last states, piece by piece if they are long.

Letters: P prompts, S slots, T tokens of a piece, D model.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from pttrainer.batch import Images
from pttrainer.models import Model, Params
from pttrainer.models.attention import kv_cache as kv
from pttrainer.rollout.engine import Prompt
from pttrainer.rollout.native.buckets import prefill_piece


class PaddedPrompts(NamedTuple):
    """Right-padded prompts, as they come from the host."""

    tokens_PS: Any
    lengths_P: Any
    numbers_P: Any
    limits_P: Any
    images: Images | None = None
    samples_P: Any = None
    """Of a prompt that is a prompt with part of a sample: that sample's number, and how many of its tokens."""
    counts_P: Any = None


class PromptBatch(NamedTuple):
    """Prompts that are computed together, and their samples in the rollout: first, …, end - 1."""

    prompts: list[Prompt]
    first: int
    end: int


def prompt_batches(prompts: Sequence[Prompt], samples: int, at_once: int) -> deque[PromptBatch]:
    """Return all prompts in order, `at_once` at a time. The last batch is filled up, so all have one shape."""
    batches: deque[PromptBatch] = deque()
    for start in range(0, len(prompts), at_once):
        chosen = list(prompts[start : start + at_once])
        filled = chosen + [chosen[-1]] * (at_once - len(chosen))
        batches.append(PromptBatch(filled, start * samples, (start + len(chosen)) * samples))
    return batches


class Prefilled(NamedTuple):
    """The prompts' cache, the states from which their first tokens are sampled, and their experts, if recorded."""

    cache: kv.KVCache
    hidden_PD: Array
    routes_PSLk: Array | None


def routes_like(model: Model, *shape: int) -> Array:
    """Return unknown experts of this many tokens, [*shape, L, k]."""
    experts = model.config.experts
    assert experts is not None
    per_token = len(model.config.expert_layers), experts.per_token
    return jnp.full((*shape, *per_token), experts.unknown_number, experts.number_dtype)


def prefill_prompts(model: Model, weights: Params, padded: PaddedPrompts, *, is_routed: bool = False) -> Prefilled:
    """Compute prompts; is_routed: and record their experts.

    Tokens of an image see those behind them, so prompts with images are computed at once.
    """
    P, S = padded.tokens_PS.shape
    slot_S = jnp.arange(S)
    positions_PS = jnp.where(slot_S < padded.lengths_P[:, None], slot_S, kv.EMPTY)
    piece = prefill_piece(P, S) if padded.images is None else S
    cache = kv.empty(model.config, P, S, model.compute_dtype)
    hidden_PD = jnp.zeros((P, int(model.head(weights).shape[1])), model.compute_dtype)

    def of_piece(i: Array, carried: Prefilled) -> Prefilled:
        cache, last_PD, routes_PSLk = carried
        tokens_PT, positions_PT = (
            lax.dynamic_slice_in_dim(x, i * piece, piece, axis=1) for x in (padded.tokens_PS, positions_PS)
        )
        if routes_PSLk is None:
            hidden_PTD, cache = model.decode(weights, tokens_PT, positions_PT, cache, padded.images)
        else:
            hidden_PTD, cache, routes = model.decode_routed(weights, tokens_PT, positions_PT, cache, padded.images)
            routes_PSLk = lax.dynamic_update_slice_in_dim(routes_PSLk, routes, i * piece, axis=1)
        at_P = padded.lengths_P - 1 - i * piece
        here_PD = jnp.take_along_axis(hidden_PTD, jnp.clip(at_P, 0, piece - 1)[:, None, None], axis=1)[:, 0]
        last_PD = jnp.where(((at_P >= 0) & (at_P < piece))[:, None], here_PD, last_PD)
        return Prefilled(cache, last_PD, routes_PSLk)

    nothing = Prefilled(cache, hidden_PD, routes_like(model, P, S) if is_routed else None)
    if piece == S:
        return of_piece(jnp.int32(0), nothing)
    pieces = (jnp.max(padded.lengths_P) + piece - 1) // piece
    done: Prefilled = lax.fori_loop(0, pieces, of_piece, nothing)
    return done
