"""How many rows and slots: few sizes, so that few shapes are compiled, and no more than the memory holds.

Arithmetic alone, for devices that are here (`room`) and for those that are not (`pttrainer.preflight`).
"""

from __future__ import annotations

from pttrainer.models import ModelStructure
from pttrainer.models.config import head_size
from pttrainer.runtime.distributed.logical_axes import Shape

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
PREFILL_TOKENS = 8192
"""Tokens of all prompts together that are computed at once: bounds the memory that long prompts take."""
CHUNK_BYTES = 256 * 2**20
"""Most bytes of weights that are under way to other devices at once (`transfer`)."""
VLLM_SHARE = 0.4
"""Share of a device's memory that vLLM takes in the trainer's process, where the job does not say."""
WEIGHTS_SHARE = 0.35
"""Share of it up to which the sampler's weights are whole over `fsdp`: training's state and a cache are there too."""


def sampler_shape(model: ModelStructure, weights: int, shape: Shape, memory: int | None) -> Shape:
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


def rows_within(each: int, devices: int, cache_bytes: int) -> int:
    """The same on accelerators that are not here. each: bytes of a row's keys and values; cache_bytes: memory for them,
    of a device."""
    return min(ROWS_ON_DEVICE * devices, max(1, cache_bytes * devices // each))


def fewer_rows(rows: int, shards: int) -> int:
    """To how many rows a rollout shrinks when no more of its rows are active: a token costs what all of them cost. A
    quarter, so that few shapes are compiled; 0 where it stays as it is."""
    quarter = rows // 4
    return quarter if quarter >= FEWEST_ROWS and quarter % shards == 0 else 0


def token_bytes(model: ModelStructure, *, filled: bool = False) -> int:
    """Keys and values of one token, all layers. filled: as a page of a TPU holds them (`head_size`)."""
    config = model.config
    bytes_each = 2 if model.compute_dtype == "bfloat16" else 4
    size = head_size(config.head_dim) if filled else config.head_dim
    return 2 * config.layers * config.kv_heads * size * bytes_each


def prefill_piece(prompts: int, slots: int) -> int:
    """Tokens of each prompt that are computed at once: all, or halves of it until they are few enough."""
    piece = slots
    while prompts * piece > PREFILL_TOKENS and piece % 2 == 0 and piece > 16:
        piece //= 2
    return piece


def slots_for(tokens: int) -> int:
    """The next of 16, 24, 32, 48, 64, 96, 128, …: few enough that few shapes are compiled."""
    power = 16
    while power < tokens:
        if power * 3 // 2 >= tokens:
            return power * 3 // 2
        power *= 2
    return power
