"""The numbers of rows and slots: few sizes, so that few shapes are compiled, and no more than fits in memory.

Arithmetic alone, for devices that are here (`max_rows`) and for those that are not (`pttrainer.preflight`).
"""

from pttrainer.models import ModelStructure
from pttrainer.models.shapes import flops
from pttrainer.runtime.tpu_tiles import LANES, filled_up

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
KEPT_BYTES = 2**30
"""Memory for kept prompts per device, if the device does not report its size."""
KEPT_SHARE = 0.1
"""Share of a device's memory for kept prompts."""
PAGE = 64
"""Tokens of a page of kept prompts: those of a chunk of the delta rule, whose states stand at the ends of pages."""
PAGES_AT_ONCE = 4
"""Pages of prompts that each accelerator computes at once: fewer would wait for its weights. A CPU computes one."""
PREFILL_TOKENS = 8192
"""Most tokens of all prompts to compute at once: bounds the memory of long prompts."""
WHOLE_TOKENS = 4096
"""Tokens of whole prompts for each part of the rows to compute at once, where a kernel attends, or one prompt's."""
GATHERED_TOKENS = 8192
"""The same, for each device to compute at once with matrices that it gathers."""
GATHERED_SHARE = 0.5
"""Matrices are gathered where what is summed in their place has at least this share of their bytes: a gather runs
beside the products, a sum does not."""
LONGEST_WHOLE = 32768
"""Longest prompt that is computed whole."""
CHUNK_BYTES = 256 * 2**20
"""Most bytes of weights in transit to other devices at once (`weight_sync`)."""
VLLM_SHARE = 0.4
"""Default share of a device's memory for vLLM in the trainer's process."""


def rows_within(each: int, devices: int, cache_bytes: int) -> int:
    """Return the most rows at once on accelerators that are not here.

    each: bytes of a row's keys and values; cache_bytes: cache memory of a device.
    """
    return min(ROWS_ON_DEVICE * devices, max(1, cache_bytes * devices // each))


def rows_and_prompts(
    model: ModelStructure, completions: int, samples: int, most: int, shards: int, tensor: int
) -> tuple[int, int]:
    """Return how many rows are sampled at once, equally many on every device, and of how many prompts.

    most: rows that fit; shards: the devices that split them; tensor: those that split matrices.
    """
    rows = min(completions, even_rows(model, most, shards, tensor))
    return rows, completions // samples if rows == completions else prompts_for(rows, samples, shards, tensor)


def even_rows(model: ModelStructure, most: int, shards: int, tensor: int) -> int:
    """Return the most rows, up to so many, that are equally many on every device that has rows of its own.

    Those are the devices of `tensor`, too, if they cannot divide a layer's key heads (`kv_cache.spreads_rows`).
    """
    cached = (group.config.cached[0] for group in model.config.groups)
    devices = shards * tensor if any(heads % tensor for heads in cached) and most >= shards * tensor else shards
    return max(most - most % devices, 1)


def prompts_for(rows: int, samples: int, shards: int, tensor: int) -> int:
    """Return how many prompts to compute at once for rows that take over their samples.

    Equally many for every device or, if there are fewer, for every part of the rows: each part would compute all of
    them otherwise.
    """
    prompts = max(1, rows // samples)
    even = (prompts - prompts % parts for parts in (shards * tensor, shards) if prompts >= parts)
    return next(even, prompts)


def fewer_rows(rows: int, shards: int) -> int:
    """Return the number of rows to shrink to once no more are active, or 0 to keep all.

    A token costs what all rows cost. The step is a quarter, so that few shapes are compiled.
    """
    quarter = rows // 4
    return quarter if quarter >= FEWEST_ROWS and quarter % shards == 0 else 0


def token_bytes(model: ModelStructure, *, filled: bool = False, tensor: int = 1, spread: bool = False) -> int:
    """Return the bytes of one token's keys and values, all layers, on one of so many devices that split their heads.

    A layer's heads are split if all parts are equal. filled: in TPU pages (`head_size`). spread: rows are split where
    heads are not, so one device's share counts.
    """
    bytes_each = 2 if model.compute_dtype == "bfloat16" else 4
    numbers = 0
    for group in model.config.groups:
        heads, *sizes = group.config.cached
        numbers_each = group.config.layers * heads * sum(filled_up(size) if filled else size for size in sizes)
        numbers += numbers_each // tensor if spread or heads % tensor == 0 else numbers_each
    return numbers * bytes_each


def state_bytes(model: ModelStructure) -> int:
    """Return the bytes of one row's states, all layers, however many tokens it has."""
    each, total = 2 if model.compute_dtype == "bfloat16" else 4, 0
    for group in model.config.groups:
        if (of := group.config.delta) is not None:
            total += group.config.layers * (4 * of.state_size + each * (of.width - 1) * of.channels)
    return total


def page_bytes(model: ModelStructure, *, filled: bool = False, tensor: int = 1) -> int:
    """Return the bytes of a page of kept prompts, with the states at its end (`token_bytes`).

    filled: a TPU may store a page's tokens as if they filled its lanes.
    """
    bytes_each = 2 if model.compute_dtype == "bfloat16" else 4
    of_tokens = (LANES if filled else PAGE) * token_bytes(model, filled=filled, tensor=tensor)
    return of_tokens + state_bytes(model) + bytes_each * model.config.d_model


def kept_pages(rows: int, longest: int, fitting: int) -> int:
    """Return the pages for so many rows of at most this length, or those that fit; 0 if one row does not."""
    each = -(-longest // PAGE)
    return min(rows * each, fitting) if fitting >= each else 0


def whole_prompts(prompts: int, slots: int, shards: int, tokens: int | None = None) -> int:
    """Return how many whole prompts to compute at once, as many in each part of the rows; 0 if they are too long.

    tokens: most of a part at once, by default WHOLE_TOKENS.
    """
    each = prompts // shards
    fitting = (n for n in range(min(each, max(1, (tokens or WHOLE_TOKENS) // slots)), 0, -1) if each % n == 0)
    return 0 if prompts % shards or slots > LONGEST_WHOLE else shards * next(fitting, 0)


def gathered_prompts(model: ModelStructure, prompts: int, slots: int, shards: int, tensor: int) -> int:
    """Return how many whole prompts to compute at once with gathered matrices; 0 if their products are summed.

    shards: parts of the rows, each on `tensor` devices, which either sum two products of a layer for all of a part's
    tokens, or gather the layer's matrices and compute prompts of their own. Left out: experts, matrices in few bits,
    and what no kernel attends to.
    """
    config, at_once = model.config, whole_prompts(prompts, slots, shards * tensor, GATHERED_TOKENS)
    has_experts = any(group.config.experts is not None for group in config.groups)
    if tensor == 1 or not config.is_pageable or has_experts or model.quantization is not None:
        return 0
    summed = 4 * at_once // shards * slots * config.d_model  # two sums, there and back
    return at_once if summed >= GATHERED_SHARE * flops.stack_weights(config) / config.layers else 0


def prefill_piece(prompts: int, slots: int) -> int:
    """Return how many tokens of each prompt to compute at once: all, or halves until they are few enough."""
    piece = slots
    while prompts * piece > PREFILL_TOKENS and piece % 2 == 0 and piece > 16:
        piece //= 2
    return piece


def pages_before(depth: int) -> int:
    """Return the next of 4, 8, 16, …: pages before a page, as the program has them that computes it."""
    return max(4, 1 << (depth - 1).bit_length()) if depth else 4


def slots_for(tokens: int) -> int:
    """Return the next of 16, 24, 32, 48, 64, 96, 128, …: few enough that few shapes are compiled."""
    power = 16
    while power < tokens:
        if power * 3 // 2 >= tokens:
            return power * 3 // 2
        power *= 2
    return power
