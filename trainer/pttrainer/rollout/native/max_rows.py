"""The number of rows that fit on the devices of this process."""

import jax

from pttrainer.models import ModelStructure
from pttrainer.rollout.native import buckets
from pttrainer.rollout.native.buckets import CACHE_BYTES, CACHE_SHARE, ROWS_ON_CPU, ROWS_ON_DEVICE
from pttrainer.runtime.distributed import sharding


def memory() -> int | None:
    """Return the bytes of a device here; None if it does not report them (a CPU)."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_limit")


def rows_that_fit(model: ModelStructure, tokens: int, draft: ModelStructure | None = None) -> int:
    """Return the rows of this length whose keys and values, and a draft model's, fit on all devices together."""
    per_row = (token_bytes(model) + (0 if draft is None else token_bytes(draft))) * tokens + buckets.state_bytes(model)
    limit = memory()
    per_device = CACHE_BYTES if limit is None else int(limit * CACHE_SHARE)
    is_shared_memory = jax.default_backend() == "cpu"
    return max(1, per_device * (1 if is_shared_memory else sharding.devices()) // per_row)


def rows_at_once(model: ModelStructure, tokens: int, draft: ModelStructure | None = None) -> int:
    """Return the rows of this length to sample at once, if the job does not set the number."""
    useful = ROWS_ON_CPU if jax.default_backend() == "cpu" else ROWS_ON_DEVICE * sharding.devices()
    return min(useful, rows_that_fit(model, tokens, draft))


def token_bytes(model: ModelStructure) -> int:
    """Return the bytes of one token's keys and values, all layers, on the chips of the mesh in context."""
    return buckets.token_bytes(model, filled=sharding.chip()[0] == "tpu")
