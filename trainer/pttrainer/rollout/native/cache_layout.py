"""Where a rollout keeps keys and values: in the dense cache, or in pages where a TPU's kernel reads them.

The choice is made when rows begin (`shared`, `idle`), from what is computed and on what; later functions follow the
cache that they are given.
"""

from __future__ import annotations

from jax import Array

from pttrainer.models import Model
from pttrainer.models.attention import kv_cache as kv
from pttrainer.models.attention import paged_kernel, paged_kv_cache
from pttrainer.models.attention.kv_cache import KVCache
from pttrainer.models.attention.paged_kv_cache import PagedCache
from pttrainer.runtime.distributed import sharding

Cache = KVCache | PagedCache


def shared(model: Model, prompts: KVCache, samples: int, slots: int, *, apart: bool = False) -> Cache:
    """The prompts' cache as read by `samples` rows each, with room for `slots` tokens of their own. apart: each row
    has its own clock, which pages do not know.

    A row that shares its prompt with nobody goes on in the prompt's slots, in the dense cache: its attention is one
    pass, not two that are put together.
    """
    if samples == 1 and not apart and not _in_pages(model, prompts, samples):
        return kv.grow(prompts, prompts.positions_BS.shape[1] + slots)
    return _beside(model, prompts, samples, slots, apart=apart)


def idle(model: Model, rows: int, prompt_slots: int, slots: int, *, apart: bool = False) -> Cache:
    """A cache of rows that will take over prompts of up to `prompt_slots` tokens."""
    return _beside(model, kv.empty(model.config, rows, prompt_slots, model.compute_dtype), 1, slots, apart=apart)


def _beside(model: Model, prompts: KVCache, samples: int, slots: int, *, apart: bool) -> Cache:
    """Prompts, which other rows read or which give way to others, and rows' own slots beside them."""
    if apart:
        return kv.with_row_clocks(kv.share(model.config, prompts, samples, slots))
    if _in_pages(model, prompts, samples):
        return paged_kv_cache.share(prompts, samples, slots)
    return kv.share(model.config, prompts, samples, slots)


def _in_pages(model: Model, prompts: KVCache, samples: int) -> bool:
    rows = prompts.positions_BS.shape[0] * samples
    return paged_kernel.is_supported(paged_kernel.problem_of(model.config, rows, model.compute_dtype))


def room(cache: Cache) -> int:
    """Tokens that the oldest row may have: its own, and its prompt's where they stand in the same slots (`shared`)."""
    return paged_kv_cache.capacity(cache) if isinstance(cache, PagedCache) else cache.positions_BS.shape[1]


def grown(cache: Cache, slots: int) -> Cache:
    """The same cache with room for `slots` tokens."""
    return paged_kv_cache.grow(cache, slots) if isinstance(cache, PagedCache) else kv.grow(cache, slots)


def taken_over(cache: Cache, row: Array, prompts: KVCache, which: Array) -> Cache:
    """Row `row` reads a copy of one of the prompts, and nothing that it held before."""
    if isinstance(cache, PagedCache):
        return paged_kv_cache.replace_row(cache, row, prompts, which)
    return kv.replace_row(cache, row, prompts, which)


def only(cache: Cache, rows: Array) -> Cache:
    """The cache of these rows alone."""
    return paged_kv_cache.select_rows(cache, rows) if isinstance(cache, PagedCache) else kv.select_rows(cache, rows)


def laid_out(cache: Cache) -> Cache:
    """Rows over the devices that split a batch, key heads over those that split a layer. Pages are made so."""
    if isinstance(cache, PagedCache):
        return cache

    def of_layer(layer: kv.LayerKV) -> kv.LayerKV:
        return kv.LayerKV(*(sharding.constrain_fitting(x, ("batch", "kv_heads", None, None)) for x in layer))

    cache = cache._replace(layers=tuple(of_layer(layer) for layer in cache.layers))
    if cache.prompt is not None:
        prompts = tuple(of_layer(layer) for layer in cache.prompt.layers)
        cache = cache._replace(prompt=cache.prompt._replace(layers=prompts))
    return cache
