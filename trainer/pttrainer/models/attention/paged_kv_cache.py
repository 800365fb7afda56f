"""Keys and values in pages: the cache that the ragged paged attention kernel of TPUs reads.

Letters: B rows, P prompts, G samples per prompt, T tokens, K key/value heads, C = 2K (a head's keys, then its values),
H head size, E parts of the batch on different devices, X pages of a part, Z tokens of a page, J pages of a row.

A row is a list of pages: the token of position p is in page p // Z of the list. Full pages of a prompt are never
written again, so all rows that read the prompt on a device point at one copy. The page in which a prompt ends is copied
to each row, as its first own page, and the row's tokens follow there. So a row's tokens are one sequence from position
0 on, independent of the others: nothing is masked except beyond its end, and nothing beyond it is read. Unlike in
`kv_cache`, a row has no empty slots and rows have no common clock; `index` only counts rounds.

Each device stores what it reads: the leading axis of the pages is split like the rows, and page numbers count within a
part. Left out: the choice of this cache and reading it (`paged_kernel`).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from pttrainer.models.attention.kv_cache import KVCache, Layer, LayerKV
from pttrainer.runtime.distributed import logical_axes, sharding
from pttrainer.runtime.layouts import row_major
from pttrainer.runtime.tpu_tiles import filled_up

PAGE = 64
"""Tokens of a page, the unit of a copy to the core. Each row has one page more than its tokens need."""


class PagedCache(NamedTuple):
    """The state of a decoding batch.

    layers: [E, X, Z, C, H] each; prompt_BJ and own_BJ: pages of a row's prompt and of its own; full_B: how many of
    the prompt's pages are full, and therefore shared.
    """

    layers: tuple[Array, ...]
    prompt_BJ: Array
    own_BJ: Array
    full_B: Array
    index: Array  # type: ignore[assignment]  # hides tuple.index, which nobody calls


def share(prompts: KVCache, samples: int, slots: int) -> PagedCache:
    """Return the prompts' cache as read by `samples` rows each, with room for `slots` new tokens (P·G rows)."""
    P, prompt_slots = prompts.positions_BS.shape
    rows = P * samples
    parts = sharding.parts("batch")
    # As many neighbours as possible that read one prompt on one device.
    readers = math.gcd(samples, rows // parts)
    copied = jnp.arange(rows // readers) * readers // samples
    prompt_of_B = jnp.arange(rows) // samples
    full_B = _full_pages(prompts.positions_BS)[prompt_of_B]
    own_pages = _own_pages(slots)

    def of_layer(layer: Layer) -> Array:
        assert isinstance(layer, LayerKV)
        pages_PJ = _in_pages(layer)
        own_BJ = jnp.zeros((rows, own_pages, *pages_PJ.shape[2:]), pages_PJ.dtype)
        last_B = pages_PJ[prompt_of_B, jnp.minimum(full_B, pages_PJ.shape[1] - 1)]
        shared = pages_PJ if readers == samples else pages_PJ[copied]
        return _joined(shared, own_BJ.at[:, 0].set(last_B), parts)

    tables = _tables(rows, parts, readers, -(-prompt_slots // PAGE), own_pages)
    return PagedCache(tuple(map(of_layer, prompts.layers)), *tables, full_B, jnp.zeros((), jnp.int32))


def capacity(cache: PagedCache) -> int:
    """Return the number of own tokens that every row can hold. One of its pages begins with the end of its prompt."""
    return (cache.own_BJ.shape[1] - 1) * PAGE


def grow(cache: PagedCache, slots: int) -> PagedCache:
    """Return the cache enlarged to `slots` tokens, at least as many as it has. New pages follow all others."""
    more = _own_pages(slots) - cache.own_BJ.shape[1]
    if more <= 0:
        return cache
    parts, old = cache.layers[0].shape[:2]
    rows = cache.full_B.shape[0]

    def of_layer(pages_EX: Array) -> Array:
        new = jnp.zeros((parts, rows // parts * more, *pages_EX.shape[2:]), pages_EX.dtype)
        return jnp.concatenate([pages_EX, new], axis=1)

    new_BJ = old + _consecutive(jnp.arange(rows) % (rows // parts), more)
    own_BJ = jnp.concatenate([cache.own_BJ, new_BJ], axis=1)
    return cache._replace(layers=tuple(map(of_layer, cache.layers)), own_BJ=own_BJ)


def replace_row(cache: PagedCache, row: Array, prompts: KVCache, which: Array) -> PagedCache:
    """Make row `row`, which shares its prompt's pages with no other, read a copy of one of the prompts."""
    full = _full_pages(prompts.positions_BS)[which]
    part = row // (cache.full_B.shape[0] // cache.layers[0].shape[0])
    is_split = prompts.positions_BS.shape[0] % sharding.parts("batch") == 0
    at = (which, full, part, cache.prompt_BJ[row, 0], cache.own_BJ[row, 0])
    copy: Callable[..., Array] = partial(_copy_prompt, is_split=is_split)
    if sharding.devices() > 1:
        page_spec = sharding.spec_of(AXES)
        source = sharding.spec_of(("batch" if is_split else None, "kv_heads", None, None))
        # One spec stands for both arrays of a layer, and for all numbers.
        copy = jax.shard_map(
            copy, in_specs=(page_spec, source, sharding.spec_of(())), out_specs=page_spec, check_vma=False
        )
    layers = tuple(copy(pages_EX, layer, at) for pages_EX, layer in zip(cache.layers, prompts.layers, strict=True))
    return cache._replace(layers=layers, full_B=cache.full_B.at[row].set(full))


def _copy_prompt(pages_EX: Array, layer: LayerKV, at: tuple[Array, ...], is_split: bool) -> Array:
    """Do one device's part of `replace_row`: the prompt comes from the device that has it, and only one writes."""
    which, full, part, prompt_page, own_page = at
    pages_1J = _in_pages(LayerKV(*(_one_prompt(x, which, is_split) for x in layer)))
    last_11 = lax.dynamic_slice_in_dim(pages_1J, jnp.minimum(full, pages_1J.shape[1] - 1), 1, axis=1)
    is_here = part == _part()
    for new, page in ((pages_1J, prompt_page), (last_11, own_page)):
        old = lax.dynamic_slice_in_dim(pages_EX, page, new.shape[1], axis=1)
        pages_EX = lax.dynamic_update_slice_in_dim(pages_EX, jnp.where(is_here, new, old), page, axis=1)
    # Else the loop around this may lay all pages out as suits this copy, and turn them at every token.
    return row_major(pages_EX)


def _one_prompt(x_PKXX: Array, which: Array, is_split: bool) -> Array:
    """Return a prompt's keys or values. Split prompts are never gathered: all devices but one contribute zeros."""
    if not is_split or sharding.devices() == 1:
        return lax.dynamic_slice_in_dim(x_PKXX, which, 1, axis=0)
    local_prompts = x_PKXX.shape[0]
    mine = lax.dynamic_slice_in_dim(x_PKXX, which % local_prompts, 1, axis=0)
    prompt: Array = lax.psum(jnp.where(which // local_prompts == _part(), mine, 0), logical_axes.BATCH_AXES)
    return prompt


def _part() -> Array | int:
    """Return the index of this device's part of the batch."""
    return 0 if sharding.devices() == 1 else lax.axis_index(logical_axes.BATCH_AXES)


def select_rows(cache: PagedCache, rows: Array) -> PagedCache:
    """Return the cache of these rows only, each with a prompt of its own."""
    parts, pages = cache.layers[0].shape[:2]
    first_B = rows // (cache.full_B.shape[0] // parts) * pages
    prompt_BJ, own_BJ = (first_B[:, None] + table_BJ[rows] for table_BJ in (cache.prompt_BJ, cache.own_BJ))

    def of_layer(pages_EX: Array) -> Array:
        flat = pages_EX.reshape(parts * pages, *pages_EX.shape[2:])
        return _joined(flat[prompt_BJ], flat[own_BJ], parts)

    tables = _tables(rows.shape[0], parts, 1, prompt_BJ.shape[1], own_BJ.shape[1])
    return PagedCache(tuple(map(of_layer, cache.layers)), *tables, cache.full_B[rows], cache.index)


def table(cache: PagedCache) -> Array:
    """Return the pages of each row in the order of its tokens [B, J]: full ones of its prompt, then its own."""
    prompt, own = cache.prompt_BJ.shape[1], cache.own_BJ.shape[1]
    place_J = jnp.arange(prompt + own)
    own_place_BJ = jnp.clip(place_J - cache.full_B[:, None], 0, own - 1)
    own_BJ = jnp.take_along_axis(cache.own_BJ, own_place_BJ, axis=1)
    prompt_BJ = cache.prompt_BJ[:, jnp.minimum(place_J, prompt - 1)]
    return jnp.where(place_J < cache.full_B[:, None], prompt_BJ, own_BJ)


def write(pages_XZCH: Array, k_BTKH: Array, v_BTKH: Array, table_BJ: Array, positions_BT: Array) -> Array:
    """Write new keys and values at their positions, in one part; position -1 is dropped."""
    B, T = positions_BT.shape
    X, _, C, lanes = pages_XZCH.shape
    new_BTCH = jnp.stack([k_BTKH, v_BTKH], axis=3).reshape(B, T, C, -1)
    place_BT = jnp.clip(positions_BT // PAGE, 0, table_BJ.shape[1] - 1)
    nowhere_BT = X + jnp.arange(B * T).reshape(B, T)  # behind the last page, and unique
    page_BT = jnp.where(positions_BT >= 0, jnp.take_along_axis(table_BJ, place_BT, axis=1), nowhere_BT)
    filled = pad_heads(new_BTCH, lanes).astype(pages_XZCH.dtype)
    return pages_XZCH.at[page_BT, positions_BT % PAGE].set(filled, mode="drop", unique_indices=True)


def pad_heads(x: Array, size: int) -> Array:
    """Pad heads with zeros, which change no product."""
    return jnp.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, size - x.shape[-1]),))


def _own_pages(slots: int) -> int:
    return -(-slots // PAGE) + 1


def _full_pages(positions_PS: Array) -> Array:
    return jnp.sum(positions_PS >= 0, axis=1, dtype=jnp.int32) // PAGE


def _in_pages(layer: LayerKV) -> Array:
    """Return right-padded rows of a cache as pages [P, J, Z, C, H]."""
    P, K, S, H = layer.v_BKSH.shape
    k_PSKH, v_PSKH = layer.k_BKHS.transpose(0, 3, 1, 2), layer.v_BKSH.transpose(0, 2, 1, 3)
    both_PSCH = jnp.stack([k_PSKH, v_PSKH], axis=3).reshape(P, S, 2 * K, H)
    pages = -(-S // PAGE)
    filled = jnp.pad(both_PSCH, ((0, 0), (0, pages * PAGE - S), (0, 0), (0, filled_up(H) - H)))
    return filled.reshape(P, pages, PAGE, 2 * K, filled_up(H))


def _joined(prompt_CJ: Array, own_BJ: Array, parts: int) -> Array:
    """Return pages [E, X, Z, C, H]: in each part those of its prompts, then those of its rows."""
    of_parts = (x.reshape(parts, -1, *x.shape[2:]) for x in (prompt_CJ, own_BJ))
    return sharding.constrain_fitting(jnp.concatenate(list(of_parts), axis=1), AXES)


AXES = ("batch", None, None, "kv_heads", None)
"""Logical axes of a layer's pages."""


def _tables(rows: int, parts: int, readers: int, prompt_pages: int, own_pages: int) -> tuple[Array, Array]:
    """Return prompt_BJ and own_BJ of `_joined` pages. readers: neighbours that share a prompt's pages."""
    row_B = jnp.arange(rows) % (rows // parts)
    prompts = rows // parts // readers * prompt_pages
    return _consecutive(row_B // readers, prompt_pages), prompts + _consecutive(row_B, own_pages)


def _consecutive(owner_B: Array, pages: int) -> Array:
    """Return the pages of each owner, if all have equally many in order."""
    return owner_B[:, None] * pages + jnp.arange(pages)
