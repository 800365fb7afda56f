"""The storage of a rollout's keys and values: the dense cache, or pages where a TPU's kernel reads them.

The choice is made when rows begin (`shared`, `idle`), from what is computed and on what; later functions follow the
cache that they are given.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from pttrainer.models import Model
from pttrainer.models.attention import flash_kernels, paged_kernel, paged_kv_cache
from pttrainer.models.attention import kv_cache as kv
from pttrainer.models.attention.kv_cache import KVCache
from pttrainer.models.attention.paged_kv_cache import PagedCache
from pttrainer.runtime.distributed import sharding

Cache = KVCache | PagedCache


def shared(model: Model, prompts: KVCache, samples: int, slots: int, *, own_clocks: bool = False) -> Cache:
    """Return the prompts' cache as read by `samples` rows each, with `slots` slots for tokens of their own.

    own_clocks: each row has its own clock, which pages do not support. A row that shares its prompt with no other
    continues in the prompt's slots, in the dense cache: its attention is one pass, not two that are combined.
    """
    if samples == 1 and not own_clocks and not _is_paged(model, prompts, samples):
        return kv.grow(prompts, prompts.positions_BS.shape[1] + slots)
    return _shared_prompts(model, prompts, samples, slots, own_clocks=own_clocks)


def idle(model: Model, rows: int, prompt_slots: int, slots: int, *, own_clocks: bool = False) -> Cache:
    """Return a cache of rows that will take over prompts of up to `prompt_slots` tokens."""
    return _shared_prompts(
        model, kv.empty(model.config, rows, prompt_slots, model.compute_dtype), 1, slots, own_clocks=own_clocks
    )


def _shared_prompts(model: Model, prompts: KVCache, samples: int, slots: int, *, own_clocks: bool) -> Cache:
    """Return prompts that rows share or replace, with each row's own slots next to them."""
    if not own_clocks and _is_paged(model, prompts, samples):
        return paged_kv_cache.share(prompts, samples, slots)
    cache = kv.share(model.config, *_copied(model, prompts, samples), slots)
    return kv.with_row_clocks(cache) if own_clocks else cache


def _copied(model: Model, prompts: KVCache, samples: int) -> tuple[KVCache, int]:
    """Return a copy of each prompt for each device that has rows of it, and how many rows read one.

    One is enough unless devices that split a prompt's rows have rows of their own (`kv.spreads_rows`).
    """
    rows, parts = prompts.positions_BS.shape[0] * samples, sharding.parts("spread_batch")
    readers = math.gcd(samples, rows // parts)
    if readers == samples or not kv.spreads_rows_of_some(model.config, rows):
        return prompts, samples
    return kv.select_rows(prompts, jnp.arange(rows // readers) * readers // samples), readers


def _is_paged(model: Model, prompts: KVCache, samples: int) -> bool:
    rows = prompts.positions_BS.shape[0] * samples
    if not model.config.is_pageable:
        return False
    return paged_kernel.is_supported(flash_kernels.model_problem(model.config, rows, 1, model.compute_dtype))


def capacity(cache: Cache) -> int:
    """Return the most tokens of the oldest row: its own, plus its prompt's if both share slots (`shared`)."""
    return paged_kv_cache.capacity(cache) if isinstance(cache, PagedCache) else cache.positions_BS.shape[1]


def grow(cache: Cache, slots: int) -> Cache:
    """Return the same cache with capacity for `slots` tokens."""
    return paged_kv_cache.grow(cache, slots) if isinstance(cache, PagedCache) else kv.grow(cache, slots)


def take_over(cache: Cache, row: Array, prompts: KVCache, which: Array) -> Cache:
    """Let row `row` read a copy of one of the prompts, and nothing that it held before."""
    if isinstance(cache, PagedCache):
        return paged_kv_cache.replace_row(cache, row, prompts, which)
    return kv.replace_row(cache, row, prompts, which)


def select_rows(cache: Cache, rows: Array) -> Cache:
    """Return the cache of these rows alone."""
    return paged_kv_cache.select_rows(cache, rows) if isinstance(cache, PagedCache) else kv.select_rows(cache, rows)


def with_shardings(cache: Cache, *, of_prompts: bool = False) -> Cache:
    """Shard rows over the batch devices, key heads over the tensor devices. Pages are created sharded.

    Where these cannot divide a layer's key heads they have rows of their own (`kv.spreads_rows`). of_prompts: that are
    being computed, many tokens of a row at once: then they divide queries, and each has the keys of all.
    """
    if isinstance(cache, PagedCache):
        return cache

    def one(x: Array) -> Array:
        heads = ("kv_heads", None, None) if x.ndim == 4 else (None, None)  # of a convolution's inputs, there are none
        return sharding.constrain_fitting(x, ("batch", *heads))

    def of_layer(layer: Any) -> Any:
        rows, heads = layer.k_BKHS.shape[:2] if isinstance(layer, kv.LayerKV) else (0, 0)
        if of_prompts or not kv.spreads_rows(heads, rows):
            return jax.tree.map(one, layer)
        return kv.LayerKV(*(sharding.constrain(x, ("spread_batch", None, None, None)) for x in layer))

    positions_BS = sharding.constrain_rows(cache.positions_BS)
    cache = cache._replace(layers=tuple(map(of_layer, cache.layers)), positions_BS=positions_BS)
    if cache.prompt is not None:
        prompts = tuple(map(of_layer, cache.prompt.layers))
        cache = cache._replace(prompt=cache.prompt._replace(layers=prompts))
    return cache
