"""How many rows and slots: few sizes, so that few shapes are compiled, and no more than the memory holds."""

from __future__ import annotations

import jax

from pttrainer import sharding
from pttrainer.models import Model, ModelConfig, pages
from pttrainer.sharding import Shape

FIRST_SLOTS = 128
"""Slots that rows begin with; doubled whenever the oldest needs more."""
ROWS_ON_CPU, ROWS_ON_DEVICE = 64, 256
"""Most rows at once for each device: more make a token cheaper no longer, and wait for the longest."""
FEWEST_ROWS = 8
"""Rows are not made fewer than that."""
CACHE_BYTES = 2 * 2**30
"""Memory for keys and values per device, where the device does not say how much it has."""
CACHE_SHARE = 0.3
"""Share of a device's memory for keys and values."""
WEIGHTS_SHARE = 0.35
"""Share of it up to which the sampler's weights are whole over `fsdp`: training's state and a cache are there too."""


def memory() -> int | None:
    """Bytes of a device here; None where it does not say (a CPU)."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_limit")


def sampler_shape(model: Model, weights: int, shape: Shape, memory: int | None) -> Shape:
    """The mesh that samples, on the devices of the one that trains: `tensor` takes of `fsdp` what it needs, so that the
    weights (bytes of all of them) take no more of a device than their share. Key heads stay whole."""
    data, fsdp, tensor, *rest = shape
    more = 1
    while (
        memory is not None
        and weights > WEIGHTS_SHARE * memory * tensor * more
        and fsdp % (2 * more) == 0
        and model.config.kv_heads % (2 * more * tensor) == 0
    ):
        more *= 2
    return (data, fsdp // more, tensor * more, rest[0], rest[1])


def rows_that_fit(model: Model, tokens: int, draft: Model | None = None) -> int:
    """Rows of this length whose keys and values fit the memory for them, on all devices of the mesh together; those of
    a draft model too."""
    per_row = (token_bytes(model) + (0 if draft is None else token_bytes(draft))) * tokens
    limit = memory()
    per_device = CACHE_BYTES if limit is None else int(limit * CACHE_SHARE)
    is_shared_memory = jax.default_backend() == "cpu"
    return max(1, per_device * (1 if is_shared_memory else sharding.devices()) // per_row)


def rows_at_once(model: Model, tokens: int, draft: Model | None = None) -> int:
    """Rows of this length that are sampled at once, where the job does not say how many."""
    useful = ROWS_ON_CPU if jax.default_backend() == "cpu" else ROWS_ON_DEVICE * sharding.devices()
    return min(useful, rows_that_fit(model, tokens, draft))


def rows_within(each: int, devices: int, cache_bytes: int) -> int:
    """The same on accelerators that are not here. each: bytes of a row's keys and values; cache_bytes: memory for them,
    of a device."""
    return min(ROWS_ON_DEVICE * devices, max(1, cache_bytes * devices // each))


def fewer_rows(rows: int, shards: int) -> int:
    """To how many rows a rollout shrinks when no more of its rows are active: a token costs what all of them cost. A
    quarter, so that few shapes are compiled; 0 where it stays as it is."""
    quarter = rows // 4
    return quarter if quarter >= FEWEST_ROWS and quarter % shards == 0 else 0


def token_bytes(model: Model) -> int:
    """Keys and values of one token, all layers, on the chips of the mesh in context. A TPU fills heads up."""
    config: ModelConfig = model.config
    bytes_each = 2 if model.compute_dtype == "bfloat16" else 4
    head_size = pages.head_size(config.head_dim) if sharding.chip()[0] == "tpu" else config.head_dim
    return 2 * config.layers * config.kv_heads * head_size * bytes_each


def slots_for(tokens: int) -> int:
    """The next of 16, 24, 32, 48, 64, 96, 128, …: few enough that few shapes are compiled."""
    power = 16
    while power < tokens:
        if power * 3 // 2 >= tokens:
            return power * 3 // 2
        power *= 2
    return power
