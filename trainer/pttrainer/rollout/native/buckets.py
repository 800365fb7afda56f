"""The numbers of rows and slots: few sizes, so that few shapes are compiled, and no more than fits in memory.

Arithmetic alone, for devices that are here (`max_rows`) and for those that are not (`pttrainer.preflight`).
"""

from pttrainer.models import ModelStructure
from pttrainer.models.attention.tpu_lanes import head_size
from pttrainer.runtime.distributed.logical_axes import Shape

FIRST_SLOTS = 128
"""Initial slots of rows; doubled whenever the oldest needs more."""
ROWS_ON_CPU, ROWS_ON_DEVICE = 64, 256
"""Most rows at once per device: more no longer make a token cheaper, and wait for the longest."""
FEWEST_ROWS = 8
"""Fewest rows to shrink to."""
CACHE_BYTES = 2 * 2**30
"""Memory for keys and values per device, if the device does not report its size."""
CACHE_SHARE = 0.3
"""Share of a device's memory for keys and values."""
PREFILL_TOKENS = 8192
"""Most tokens of all prompts to compute at once: bounds the memory of long prompts."""
CHUNK_BYTES = 256 * 2**20
"""Most bytes of weights in transit to other devices at once (`weight_sync`)."""
VLLM_SHARE = 0.4
"""Default share of a device's memory for vLLM in the trainer's process."""
WEIGHTS_SHARE = 0.35
"""Most share of it for unsplit sampler weights: the training state and a cache need memory, too."""


def sampler_shape(model: ModelStructure, weights: int, shape: Shape, memory: int | None) -> Shape:
    """Return the mesh that samples, on the devices of the training mesh.

    `tensor` takes from `fsdp` what it needs, so that the weights (bytes of all of them) take no more than their
    share of a device's memory. Key heads stay whole.
    """
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
    """Return the most rows at once on accelerators that are not here.

    each: bytes of a row's keys and values; cache_bytes: cache memory of a device.
    """
    return min(ROWS_ON_DEVICE * devices, max(1, cache_bytes * devices // each))


def fewer_rows(rows: int, shards: int) -> int:
    """Return the number of rows to shrink to once no more are active, or 0 to keep all.

    A token costs what all rows cost. The step is a quarter, so that few shapes are compiled.
    """
    quarter = rows // 4
    return quarter if quarter >= FEWEST_ROWS and quarter % shards == 0 else 0


def token_bytes(model: ModelStructure, *, filled: bool = False) -> int:
    """Return the bytes of one token's keys and values, all layers. filled: in TPU pages (`head_size`)."""
    bytes_each = 2 if model.compute_dtype == "bfloat16" else 4
    numbers = 0
    for group in model.config.groups:
        heads, *sizes = group.config.cached
        numbers += group.config.layers * heads * sum(head_size(size) if filled else size for size in sizes)
    return numbers * bytes_each


def state_bytes(model: ModelStructure) -> int:
    """Return the bytes of one row's states, all layers, however many tokens it has."""
    each, total = 2 if model.compute_dtype == "bfloat16" else 4, 0
    for group in model.config.groups:
        if (of := group.config.delta) is not None:
            total += group.config.layers * (4 * of.state_size + each * (of.width - 1) * of.channels)
    return total


def prefill_piece(prompts: int, slots: int) -> int:
    """Return how many tokens of each prompt to compute at once: all, or halves until they are few enough."""
    piece = slots
    while prompts * piece > PREFILL_TOKENS and piece % 2 == 0 and piece > 16:
        piece //= 2
    return piece


def slots_for(tokens: int) -> int:
    """Return the next of 16, 24, 32, 48, 64, 96, 128, …: few enough that few shapes are compiled."""
    power = 16
    while power < tokens:
        if power * 3 // 2 >= tokens:
            return power * 3 // 2
        power *= 2
    return power
