"""Pages of computed tokens on the devices: keys, values, states of a delta rule, and the state after the last token.

Letters: X pages, C tokens of a page, J pages of a row, R pages computed at once, M of those in a program, P prompts, S
slots, D model.

    empty  creates the pages
    fill   computes pages, each from the pages before it
    copy   puts prompts together from their pages

A page is computed by the program for its place in the prompt, from the pages before it and nothing else: never by one
whose shapes depend on the other prompts or on the prompt's end. So a page has the same bits whichever call computes it,
and samples do not depend on what was kept.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from pttrainer.models import Model, Params
from pttrainer.models.attention import kv_cache as kv
from pttrainer.models.attention.gated_delta import DeltaState
from pttrainer.rollout.native.buckets import PAGE
from pttrainer.runtime.distributed import sharding


class PageStore(NamedTuple):
    """The pages; a page is a row of each layer. hidden_XD: the state from which the token after a page is sampled."""

    layers: tuple[kv.Layer, ...]
    hidden_XD: Array


class NewPages(NamedTuple):
    """Pages to compute. lengths_MR: their tokens; page_MR: where they go, X for nowhere.

    before_MRJ: the pages before each, the first depth_MR of them; the others are not read.
    """

    tokens_MRC: Any
    lengths_MR: Any
    page_MR: Any
    before_MRJ: Any
    depth_MR: Any


class PromptPages(NamedTuple):
    """The pages of prompts. is_here_P: whether a prompt's are all in the store now."""

    pages_PJ: Any
    lengths_P: Any
    is_here_P: Any


def empty(model: Model, pages: int) -> PageStore:
    """Return a store of so many pages."""
    layers = kv.empty(model.config, pages, PAGE, model.compute_dtype).layers
    hidden_XD = jnp.zeros((pages, model.config.d_model), model.compute_dtype)
    return _with_shardings(PageStore(layers, hidden_XD))


def fill(model: Model, weights: Params, store: PageStore, new: NewPages, count: Array) -> PageStore:
    """Compute the first `count` of the M groups of pages, in order."""

    def group(m: Array, store: PageStore) -> PageStore:
        return _filled(model, weights, store, NewPages(*(x[m] for x in new)))

    return _with_shardings(lax.fori_loop(0, count, group, store))


def copy(
    slots: int, store: PageStore, prompts: PromptPages, copied: tuple[kv.KVCache, Array] | None
) -> tuple[kv.KVCache, Array]:
    """Return the prompts' cache, of so many slots, and last states, with those that are here added to the others."""
    slot_S = jnp.arange(slots)
    last_P1 = (prompts.lengths_P[:, None] - 1) // PAGE
    end_P = jnp.take_along_axis(prompts.pages_PJ, last_P1, axis=1)[:, 0]

    def of_layer(pages: kv.Layer) -> kv.Layer:
        if not isinstance(pages, kv.LayerKV):
            return None if pages is None else _states(pages, end_P)
        read = _read(pages, prompts.pages_PJ)
        return kv.LayerKV(read.k_BKHS[..., :slots], read.v_BKSH[:, :, :slots])

    def put(new: Array, old: Array) -> Array:
        return jnp.where(prompts.is_here_P.reshape(-1, *[1] * (old.ndim - 1)), new, old)

    positions_PS = jnp.where(slot_S < prompts.lengths_P[:, None], slot_S, kv.EMPTY)
    layers, hidden_PD = tuple(map(of_layer, store.layers)), jnp.take(store.hidden_XD, end_P, axis=0, mode="clip")
    if copied is not None:
        layers, hidden_PD = jax.tree.map(put, (layers, hidden_PD), (copied[0].layers, copied[1]))
    return kv.KVCache(layers, positions_PS, jnp.int32(slots)), hidden_PD


def _filled(model: Model, weights: Params, store: PageStore, new: NewPages) -> PageStore:
    """Compute one group: R pages, none of which is before another."""
    place_C = jnp.arange(PAGE)
    tokens_RC = sharding.constrain_fitting(new.tokens_MRC, ("batch", None))
    start_R1 = new.depth_MR[:, None] * PAGE
    positions_RC = jnp.where(place_C < new.lengths_MR[:, None], start_R1 + place_C, kv.EMPTY)
    hidden_RCD, cache = model.decode(weights, tokens_RC, positions_RC, _cache_before(model, store, new))
    at_R11 = jnp.maximum(new.lengths_MR - 1, 0)[:, None, None]
    hidden_RD = jnp.take_along_axis(hidden_RCD, at_R11, axis=1)[:, 0]

    def put(pages: Array, of_group: Array) -> Array:
        return pages.at[new.page_MR].set(of_group.astype(pages.dtype), mode="drop")

    return PageStore(jax.tree.map(put, store.layers, cache.layers), put(store.hidden_XD, hidden_RD))


def _cache_before(model: Model, store: PageStore, new: NewPages) -> kv.KVCache:
    """Return an empty cache of a page for each row, behind the tokens before it."""
    R, J = new.before_MRJ.shape
    slot_S = jnp.arange(J * PAGE)
    positions_RS = jnp.where(slot_S < new.depth_MR[:, None] * PAGE, slot_S, kv.EMPTY)
    read = tuple(_read(x, new.before_MRJ) if isinstance(x, kv.LayerKV) else None for x in store.layers)
    cache = kv.empty(model.config, R, PAGE, model.compute_dtype, kv.SharedPrompt(read, positions_RS))
    last_R1 = jnp.maximum(new.depth_MR - 1, 0)[:, None]
    before_R = jnp.take_along_axis(new.before_MRJ, last_R1, axis=1)[:, 0]

    def started(begin: Array, state: Array) -> Array:
        return jnp.where((new.depth_MR > 0).reshape(-1, *[1] * (state.ndim - 1)), state, begin)

    layers = tuple(
        jax.tree.map(started, own, _states(of, before_R)) if isinstance(of, DeltaState) else own
        for own, of in zip(cache.layers, store.layers, strict=True)
    )
    return cache._replace(layers=layers)


def _read(layer: kv.LayerKV, pages_BJ: Array) -> kv.LayerKV:
    """Return pages as slots of rows."""
    k_BJKHC, v_BJKCH = (jnp.take(x, pages_BJ, axis=0, mode="clip") for x in layer)
    B, J, K, H, C = k_BJKHC.shape
    k_BKHS = k_BJKHC.transpose(0, 2, 3, 1, 4).reshape(B, K, H, J * C)
    return kv.LayerKV(k_BKHS, v_BJKCH.transpose(0, 2, 1, 3, 4).reshape(B, K, J * C, v_BJKCH.shape[-1]))


def _states(state: DeltaState, pages_B: Array) -> DeltaState:
    return DeltaState(*(jnp.take(x, pages_B, axis=0, mode="clip") for x in state))


def _with_shardings(store: PageStore) -> PageStore:
    """Shard pages over the batch devices, key heads over the tensor devices."""

    def one(x: Array) -> Array:
        heads = ("kv_heads", None, None) if x.ndim == 4 else (None,) * (x.ndim - 1)
        return sharding.constrain_fitting(x, ("batch", *heads))

    return PageStore(jax.tree.map(one, store.layers), one(store.hidden_XD))
