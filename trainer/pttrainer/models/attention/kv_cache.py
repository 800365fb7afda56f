"""Cache of keys and values between decoding steps.

Letters: L layers, B rows, P prompts, G samples per prompt, K key/value heads, S slots, H head size.

Three ideas. A cache is exactly as large as the caller makes it, because a decoding step costs what is *allocated*:
callers round to buckets and `grow` a full one. A prompt is computed once: `share` turns the prompts' cache into a part
that all G samples of a prompt read (row b reads prompt b // G), and each sample stores only its own new tokens. And
rows share one clock: the token of time t is in slot t mod S of every row, wherever the row began, so a token is one
contiguous write, and S need only cover the oldest active row. A slot is empty while its position is -1; nothing else
marks padding.

Keys have their slots last, as the product of queries and keys reads them, and values their elements last, as their
product does: a CPU would otherwise transpose the keys of every slot at every token (docs/findings/sampling-on-cpu.md).

Rows that advance by different numbers of tokens cannot share a clock (speculative decoding): `with_row_clocks` gives
each its own. Then a row's token n is in its slot n, S covers the longest row, and setting a row's time back removes
tokens: the next ones overwrite them before anything is read.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from pttrainer.models.attention import gated_delta
from pttrainer.models.attention.gated_delta import DeltaState
from pttrainer.models.config import ModelConfig
from pttrainer.runtime.distributed import sharding

EMPTY = -1


class LayerKV(NamedTuple):
    """One layer's keys (already rotated) and values."""

    k_BKHS: Array
    v_BKSH: Array


SLOTS = (3, 2)
"""The slot axis of keys and of values."""


Layer = LayerKV | DeltaState | None
"""What a layer stores; a state has no slots, and every row has one of its own. None: it reads another layer's."""


class SharedPrompt(NamedTuple):
    """The part that all samples of a prompt read; positions are [P, S]. A layer without slots has none here."""

    layers: tuple[LayerKV | None, ...]
    positions_PS: Array


class KVCache(NamedTuple):
    """The state of a decoding batch.

    index: the time, that is how many tokens every row has received; with row clocks, one per row ([B]).
    """

    layers: tuple[Layer, ...]
    positions_BS: Array
    index: Array  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    prompt: SharedPrompt | None = None


def empty(
    config: ModelConfig, rows: int, slots: int, dtype: jnp.dtype | str, prompt: SharedPrompt | None = None
) -> KVCache:
    """Return a cache for `rows` sequences of up to `slots` new tokens each."""

    def of_layer(of: ModelConfig) -> Layer:
        if of.delta is not None:
            return gated_delta.empty(of.delta, rows, dtype)
        heads, of_key, of_value = of.cached
        if not heads:
            return None
        return LayerKV(jnp.zeros((rows, heads, of_key, slots), dtype), jnp.zeros((rows, heads, slots, of_value), dtype))

    layers = tuple(of_layer(group.config) for group, _ in config.layer_places)
    return KVCache(layers, jnp.full((rows, slots), EMPTY, jnp.int32), jnp.zeros((), jnp.int32), prompt)


def splits_heads(heads: int) -> bool:
    """Return True if the devices of `tensor` divide a layer's key heads evenly."""
    return heads % sharding.parts("kv_heads") == 0


def spreads_rows(heads: int, rows: int) -> bool:
    """Return True if the devices of `tensor` have rows of their own of a layer, as they cannot divide its key heads."""
    return not splits_heads(heads) and rows % sharding.parts("spread_batch") == 0


def spreads_rows_of_some(config: ModelConfig, rows: int) -> bool:
    """Return True if that is so in any layer; one that stores nothing has no heads, which are divided evenly."""
    return any(spreads_rows(group.config.cached[0], rows) for group in config.groups)


def share(config: ModelConfig, prompts: KVCache, samples: int, slots: int) -> KVCache:
    """Return the prompts' cache as read by `samples` sequences each, with `slots` of their own (P·G rows)."""
    rows = prompts.positions_BS.shape[0] * samples
    shared = SharedPrompt(tuple(map(_slots_of, prompts.layers)), prompts.positions_BS)
    cache = empty(config, rows, slots, jax.tree.leaves(prompts.layers)[0].dtype, shared)
    pairs = zip(cache.layers, prompts.layers, strict=True)
    layers = tuple(_repeated(of, samples) if isinstance(of, DeltaState) else own for own, of in pairs)
    return cache._replace(layers=layers)


def _slots_of(layer: Layer) -> LayerKV | None:
    return layer if isinstance(layer, LayerKV) else None


def _repeated(state: DeltaState, samples: int) -> DeltaState:
    return DeltaState(*(jnp.repeat(x, samples, axis=0) for x in state))


def with_row_clocks(cache: KVCache) -> KVCache:
    """Return the empty cache with a clock for each row."""
    return cache._replace(index=jnp.zeros(cache.positions_BS.shape[0], jnp.int32))


def grow(cache: KVCache, slots: int) -> KVCache:
    """Return the cache enlarged to `slots` slots, at least as many as it has."""
    old = cache.positions_BS.shape[1]
    if cache.index.ndim:
        return _extended(cache, slots - old)
    slot_S = jnp.arange(slots)
    # The last time before now that belongs to each slot: kept if the old cache still holds it.
    time_S = cache.index - 1 - (cache.index - 1 - slot_S) % slots
    is_kept_S = (time_S >= 0) & (time_S >= cache.index - old)
    source_S = time_S % old

    def moved(x: Array, axis: int) -> Array:
        return jnp.take(x, source_S, axis=axis)

    layers = tuple(_of_both(moved, layer) for layer in cache.layers)
    positions_BS = jnp.where(is_kept_S, jnp.take(cache.positions_BS, source_S, axis=1), EMPTY)
    return cache._replace(layers=layers, positions_BS=positions_BS)


def replace_row(cache: KVCache, row: Array, prompts: KVCache, which: Array) -> KVCache:
    """Make row `row` read a copy of one of the prompts, and none of its previous slots."""
    assert cache.prompt is not None

    def put(old: Any, new: Any) -> Any:
        one = lax.dynamic_slice_in_dim(new, which, 1, axis=0)
        return lax.dynamic_update_slice_in_dim(old, one, row, axis=0)

    shared = tuple(
        None if old is None else jax.tree.map(put, old, new)
        for old, new in zip(cache.prompt.layers, prompts.layers, strict=True)
    )
    layers = tuple(
        jax.tree.map(put, old, new) if isinstance(old, DeltaState) else old
        for old, new in zip(cache.layers, prompts.layers, strict=True)
    )
    prompt = SharedPrompt(shared, put(cache.prompt.positions_PS, prompts.positions_BS))
    cache = cache._replace(layers=layers, prompt=prompt, positions_BS=cache.positions_BS.at[row].set(EMPTY))
    return cache._replace(index=cache.index.at[row].set(0)) if cache.index.ndim else cache


def select_rows(cache: KVCache, rows: Array) -> KVCache:
    """Return the cache of these rows only, each with a prompt of its own."""

    def chosen(layers: Any, which: Array) -> Any:
        return jax.tree.map(lambda x: jnp.take(x, which, axis=0), layers)

    prompt = cache.prompt
    if prompt is not None:
        which = rows // (cache.positions_BS.shape[0] // prompt.positions_PS.shape[0])
        prompt = SharedPrompt(chosen(prompt.layers, which), jnp.take(prompt.positions_PS, which, axis=0))
    positions_BS = jnp.take(cache.positions_BS, rows, axis=0)
    index = cache.index[rows] if cache.index.ndim else cache.index
    return KVCache(chosen(cache.layers, rows), positions_BS, index, prompt)


def write_positions(cache: KVCache, positions_BT: Array) -> KVCache:
    """Mark the next slots as holding these positions (-1 for padding) and advance the time."""
    slot = slot_of_next(cache)
    if slot.ndim:
        written = _each_at(cache.positions_BS, positions_BT, slot, axis=0)
    else:
        written = lax.dynamic_update_slice(cache.positions_BS, positions_BT, (0, slot))
    return cache._replace(positions_BS=written, index=cache.index + positions_BT.shape[1])


def slot_of_next(cache: KVCache) -> Array:
    """Return the slot of the next token, in every row ([B] with row clocks).

    Several tokens at once must not pass the last slot.
    """
    return cache.index % cache.positions_BS.shape[1]


def write(kv: LayerKV, k_BTKH: Array, v_BTKH: Array, slot: Array) -> LayerKV:
    """Write new keys and values into the slots from this one on."""

    def place(old: Array, new: Array, axis: int) -> Array:
        new = new.astype(old.dtype)
        if slot.ndim:
            return _each_at(old, new, slot, axis=axis - 1)
        return lax.dynamic_update_slice_in_dim(old, new, slot, axis=axis)

    return LayerKV(*map(place, kv, to_slots(k_BTKH, v_BTKH), SLOTS))


def to_slots(k_BTKH: Array, v_BTKH: Array) -> LayerKV:
    """Return keys and values of T tokens in the layout of T slots."""
    return LayerKV(k_BTKH.transpose(0, 2, 3, 1), v_BTKH.transpose(0, 2, 1, 3))


def _of_both(change: Callable[[Array, int], Array], kv: Layer) -> Layer:
    """Apply `change` to keys and to values, with the slot axis of each; a state stays as it is."""
    return LayerKV(*map(change, kv, SLOTS)) if isinstance(kv, LayerKV) else kv


def _each_at(old: Array, new: Array, slot_B: Array, axis: int) -> Array:
    """Write every row's part at a slot of its own; axis: of a row's slots."""
    return jax.vmap(partial(lax.dynamic_update_slice_in_dim, axis=axis))(old, new, slot_B)


def _extended(cache: KVCache, more: int) -> KVCache:
    """Append empty slots: rows with clocks of their own never use a slot twice."""

    def longer(x: Array, axis: int) -> Array:
        return jnp.pad(x, [(0, more if each == axis else 0) for each in range(x.ndim)])

    layers = tuple(_of_both(longer, layer) for layer in cache.layers)
    positions_BS = jnp.pad(cache.positions_BS, ((0, 0), (0, more)), constant_values=EMPTY)
    return cache._replace(layers=layers, positions_BS=positions_BS)
