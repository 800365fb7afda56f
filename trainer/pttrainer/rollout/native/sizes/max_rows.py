"""The number of rows that fit on the devices of this process."""

import jax

from pttrainer.models import ModelStructure
from pttrainer.rollout.native import buckets
from pttrainer.rollout.native.buckets import (
    CACHE_BYTES,
    CACHE_SHARE,
    KEPT_BYTES,
    KEPT_SHARE,
    ROWS_ON_CPU,
    ROWS_ON_DEVICE,
)
from pttrainer.runtime.distributed import sharding


def memory() -> int | None:
    """Return the bytes of a device here; None if it does not report them (a CPU)."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_limit")


def rows_that_fit(model: ModelStructure, tokens: int, draft: ModelStructure | None = None) -> int:
    """Return the rows of this length whose keys and values, and a draft model's, fit on all devices together."""
    per_row = (token_bytes(model) + (0 if draft is None else token_bytes(draft))) * tokens + buckets.state_bytes(model)
    return max(1, _bytes(CACHE_BYTES, CACHE_SHARE) // per_row)


def pages_that_fit(model: ModelStructure) -> int:
    """Return the pages of kept prompts that fit on all devices together."""
    return _bytes(KEPT_BYTES, KEPT_SHARE) // buckets.page_bytes(model, filled=sharding.chip()[0] == "tpu")


def _bytes(unreported: int, share: float) -> int:
    """Return so much of all devices' memory; of a CPU, which does not report it, and shares it, `unreported`."""
    limit = memory()
    per_device = unreported if limit is None else int(limit * share)
    return per_device * (1 if jax.default_backend() == "cpu" else sharding.devices())


def rows_at_once(model: ModelStructure, tokens: int, draft: ModelStructure | None = None) -> int:
    """Return the rows of this length to sample at once, if the job does not set the number."""
    useful = ROWS_ON_CPU if jax.default_backend() == "cpu" else ROWS_ON_DEVICE * sharding.devices()
    return min(useful, rows_that_fit(model, tokens, draft))


def token_bytes(model: ModelStructure) -> int:
    """Return the bytes of one token's keys and values, all layers, on the chips of the mesh in context."""
    return buckets.token_bytes(model, filled=sharding.chip()[0] == "tpu")
