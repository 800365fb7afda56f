"""Run prompts through a model, in batches: their keys, values and last states.

Where a kernel attends (TPUs), whole prompts, some of each device's at once; else piece by piece if they are long.

Letters: P prompts, S slots, T tokens of a piece, D model; G parts of the rows, each on devices of its own.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from pttrainer.batch import Images
from pttrainer.models import Model, Params
from pttrainer.models.attention import flash_kernels
from pttrainer.models.attention import kv_cache as kv
from pttrainer.rollout.engine import Prompt, Sampling
from pttrainer.rollout.native import cache_layout
from pttrainer.rollout.native.buckets import gathered_prompts, prefill_piece, whole_prompts
from pttrainer.runtime.distributed import sharding


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


def right_padded(prompts: Sequence[Prompt], slots: int, sampling: Sampling, pad_id: int) -> PaddedPrompts:
    """Return prompts, padded to so many slots, and the most tokens to sample of each."""
    lengths_P = np.array([len(prompt.tokens) for prompt in prompts], np.int32)
    tokens_PS = np.full((len(prompts), slots), pad_id, np.int32)
    for row, prompt in enumerate(prompts):
        tokens_PS[row, : len(prompt.tokens)] = prompt.tokens
    limits_P = np.minimum(sampling.max_new_tokens, sampling.max_length - lengths_P).astype(np.int32)
    numbers_P = np.array([prompt.number for prompt in prompts], np.uint32)
    return PaddedPrompts(tokens_PS, lengths_P, numbers_P, limits_P, padded_images(prompts, slots))


def _few_sizes(size: int) -> int:
    """Return a power of two, so that few shapes are compiled."""
    return 1 << (size - 1).bit_length()


def padded_images(prompts: Sequence[Prompt], slots: int) -> Images | None:
    """Return the images of all prompts, padded to as many slots; None if no prompt has any.

    Prompts with the same array of pixels share it: the turns of episodes that began with one question.
    """
    of_prompts = {row: prompt.images for row, prompt in enumerate(prompts) if prompt.images is not None}
    if not of_prompts:
        return None
    sets = {id(each.pixels_BMSSC): each.pixels_BMSSC[0] for each in of_prompts.values()}
    places = {key: place for place, key in enumerate(sets)}
    count = min(len(prompts), _few_sizes(len(sets)))
    most, patches, *rest = (max(sizes) for sizes in zip(*(of_set.shape for of_set in sets.values()), strict=True))
    patches = patches if len(rest) > 1 else _few_sizes(patches)  # of images that all have one size, there is one number
    pixels = np.zeros((count, most, patches, *rest), np.float32)
    for place, of_set in enumerate(sets.values()):
        pixels[place][tuple(map(slice, of_set.shape))] = of_set
    slots_PS, sets_P = np.zeros((len(prompts), slots), np.int32), np.zeros(len(prompts), np.int32)
    for row, each in of_prompts.items():
        slots_PS[row, : each.slots_BT.shape[1]] = each.slots_BT[0]
        sets_P[row] = places[id(each.pixels_BMSSC)]
    return Images(pixels, slots_PS, sets_P)


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
    at_once, is_gathered = _whole_prompts(model, padded)
    if 0 < at_once < P:
        return _in_groups(model, weights, padded, at_once, is_routed=is_routed)
    piece = S if at_once else prefill_piece(P, S)
    slot_S = jnp.arange(S)
    positions_PS = jnp.where(slot_S < padded.lengths_P[:, None], slot_S, kv.EMPTY)
    cache = kv.empty(model.config, P, S, model.compute_dtype)
    hidden_PD = jnp.zeros((P, int(model.head(weights).shape[1])), model.compute_dtype)

    def of_piece(i: Array, carried: Prefilled) -> Prefilled:
        cache, last_PD, routes_PSLk = carried
        tokens_PT, positions_PT = (
            lax.dynamic_slice_in_dim(x, i * piece, piece, axis=1) for x in (padded.tokens_PS, positions_PS)
        )
        if routes_PSLk is None:
            hidden_PTD, cache = model.decode(
                weights, tokens_PT, positions_PT, cache, padded.images, is_gathered=is_gathered
            )
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


def _whole_prompts(model: Model, padded: PaddedPrompts) -> tuple[int, bool]:
    """Return how many prompts to compute whole at once, or 0 to compute all of them piece by piece.

    And whether the devices of `tensor` divide them and gather the matrices.
    """
    P, S = (int(size) for size in padded.tokens_PS.shape)
    if padded.images is not None:
        return P, False

    def has_kernel(at_once: int, rows: flash_kernels.Rows) -> bool:
        if not at_once or not model.config.is_pageable:
            return False
        problem = flash_kernels.model_problem(model.config, at_once, S, model.compute_dtype, rows)
        return flash_kernels.choose_kernel(problem) == "splash"

    parts, tensor = sharding.parts("batch"), sharding.parts("mlp")
    gathered, summed = gathered_prompts(model, P, S, parts, tensor), whole_prompts(P, S, parts)
    if has_kernel(gathered, "spread_batch"):
        return gathered, True
    return summed if has_kernel(summed, "batch") else 0, False


def _in_groups(model: Model, weights: Params, padded: PaddedPrompts, at_once: int, *, is_routed: bool) -> Prefilled:
    """Compute so many prompts at once, each device some of its own."""
    P, S = padded.tokens_PS.shape
    G = sharding.parts("batch")
    each = at_once // G

    def chosen(x_P: Array, i: Array) -> Array:
        x_GP = x_P.reshape(G, P // G, *x_P.shape[1:])
        return lax.dynamic_slice_in_dim(x_GP, i * each, each, axis=1).reshape(at_once, *x_P.shape[1:])

    def of_group(i: Array, done: Prefilled) -> Prefilled:
        def put(x_P: Array, new: Array) -> Array:
            if not x_P.ndim:  # the cache's time
                return new
            x_GP, new = x_P.reshape(G, P // G, *x_P.shape[1:]), new.reshape(G, each, *x_P.shape[1:])
            return lax.dynamic_update_slice_in_dim(x_GP, new, i * each, axis=1).reshape(x_P.shape)

        some = PaddedPrompts(chosen(padded.tokens_PS, i), chosen(padded.lengths_P, i), None, None)
        made: Prefilled = jax.tree.map(put, done, prefill_prompts(model, weights, some, is_routed=is_routed))
        return made

    cache = cache_layout.with_shardings(kv.empty(model.config, P, S, model.compute_dtype), of_prompts=True)
    assert isinstance(cache, kv.KVCache)
    hidden_PD = jnp.zeros((P, int(model.head(weights).shape[1])), model.compute_dtype)
    nothing = Prefilled(cache, hidden_PD, routes_like(model, P, S) if is_routed else None)
    done: Prefilled = lax.fori_loop(0, P // at_once, of_group, nothing)
    return done
