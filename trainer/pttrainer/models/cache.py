"""Keys and values kept between decoding steps.

Letters: L layers, B rows, P prompts, G samples per prompt, K key/value heads, S slots, H head size.

Two ideas. A cache is as large as the caller makes it and no larger, because a decoding step costs what is
*allocated*: callers round to buckets and `grow` when one is full. And a prompt is computed once: `share`
turns the prompts' cache into a part that all G samples of a prompt read (row b reads prompt b // G), each
sample keeping only its own new tokens. A slot is empty while its position is -1; nothing else marks padding.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from pttrainer.models.config import ModelConfig

EMPTY = -1


class LayerKV(NamedTuple):
    """One layer's keys (already rotated) and values."""

    k_BKSH: Array
    v_BKSH: Array


class SharedPrompt(NamedTuple):
    """What all samples of a prompt read; positions are [P, S]."""

    layers: tuple[LayerKV, ...]
    positions_PS: Array


class KVCache(NamedTuple):
    """The state of a decoding batch. `index` (scalar) is the slot that the next token goes to, in every row."""

    layers: tuple[LayerKV, ...]
    positions_BS: Array
    index: Array  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    prompt: SharedPrompt | None = None


def empty(
    config: ModelConfig, rows: int, slots: int, dtype: jnp.dtype | str, prompt: SharedPrompt | None = None
) -> KVCache:
    """A cache for `rows` sequences of up to `slots` new tokens each."""
    shape = (rows, config.kv_heads, slots, config.head_dim)
    layers = tuple(LayerKV(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(config.layers))
    return KVCache(layers, jnp.full((rows, slots), EMPTY, jnp.int32), jnp.zeros((), jnp.int32), prompt)


def share(config: ModelConfig, prompts: KVCache, samples: int, slots: int) -> KVCache:
    """The prompts' cache as read by `samples` sequences each, with `slots` of their own (P·G rows)."""
    rows = prompts.positions_BS.shape[0] * samples
    shared = SharedPrompt(prompts.layers, prompts.positions_BS)
    return empty(config, rows, slots, prompts.layers[0].k_BKSH.dtype, shared)


def grow(cache: KVCache, slots: int) -> KVCache:
    """The same cache with room for `slots` tokens."""
    more = slots - cache.positions_BS.shape[1]

    def widen(x: Array) -> Array:
        return jnp.pad(x, ((0, 0), (0, 0), (0, more), (0, 0)))

    layers = tuple(LayerKV(widen(kv.k_BKSH), widen(kv.v_BKSH)) for kv in cache.layers)
    positions = jnp.pad(cache.positions_BS, ((0, 0), (0, more)), constant_values=EMPTY)
    return cache._replace(layers=layers, positions_BS=positions)


def write_positions(cache: KVCache, positions_BT: Array) -> KVCache:
    """Marks the next slots as holding these positions (-1 for padding) and moves the index past them."""
    written = lax.dynamic_update_slice(cache.positions_BS, positions_BT, (0, cache.index))
    return cache._replace(positions_BS=written, index=cache.index + positions_BT.shape[1])


def write(kv: LayerKV, k_BTKH: Array, v_BTKH: Array, index: Array) -> LayerKV:
    """Puts new keys and values into the slots from `index` on."""

    def place(old: Array, new_BTKH: Array) -> Array:
        return lax.dynamic_update_slice(old, jnp.swapaxes(new_BTKH, 1, 2).astype(old.dtype), (0, 0, index, 0))

    return LayerKV(place(kv.k_BKSH, k_BTKH), place(kv.v_BKSH, v_BTKH))
