"""Which devices attend to a layer's cache whose key heads those of `tensor` cannot divide.

Letters: B rows, T new tokens of a row, N query heads, K key heads, S slots, H head size.

Latents are one key head, and Gemma 4's layers without a window have few. Of few tokens of a row, each device attends
for rows of its own, with all heads: queries change devices, and no key is stored or read twice. Of many tokens, as
prompts have, keys are fewer than queries, so each device has the keys of all rows, and attends with the queries of
some heads. Left to itself the compiler gives all queries, or all keys, to every device at every token. Layers whose
heads are divided are left alone.
"""

from typing import NamedTuple

import jax
from jax import Array, lax
from jax.sharding import PartitionSpec

from pttrainer.models.attention import kv_cache as kv
from pttrainer.models.attention.dot_product import Scoring, Slots
from pttrainer.models.config import ModelConfig
from pttrainer.models.decoding import decode_backend
from pttrainer.models.decoding.cut_matrix import FEW_TOKENS
from pttrainer.runtime.distributed import sharding


def keep_rows(config: ModelConfig, x_BX: Array, tokens: int) -> Array:
    """Place what all layers read: the rows of layers with rows of their own would draw those of others after them."""
    has_rows = tokens < FEW_TOKENS and kv.spreads_rows_of_some(config, len(x_BX))
    return sharding.constrain_rows(x_BX) if has_rows else x_BX


class CacheDevices(NamedTuple):
    """heads: key heads of a layer; rows and tokens: B and T."""

    heads: int
    rows: int
    tokens: int

    def placed(self, x_BTXH: Array, heads: str | None) -> Array:
        """Place queries, keys or values. heads: the logical name by which they were computed."""
        if not self.has_rows:
            return x_BTXH
        # First where they were computed, or the compiler moves the stream's rows, too.
        x_BTXH = sharding.constrain_fitting(x_BTXH, ("batch", None, heads, None))
        return sharding.constrain(x_BTXH, ("spread_batch", None, None, None))

    def cache(self, layer: kv.LayerKV) -> kv.LayerKV:
        """Place what is stored."""
        if kv.splits_heads(self.heads):
            return layer
        rows = "spread_batch" if self.has_rows else "batch"
        return kv.LayerKV(*(sharding.constrain_fitting(x, (rows, None, None, None)) for x in layer))

    def attend(self, q_BTNH: Array, own: Slots, prompt: Slots | None, scoring: Scoring, *, use_kernels: bool) -> Array:
        """Attend as `decode_backend.attend` does; the result's heads are where the next matrix has their rows."""
        if self.has_rows:
            mask_BTS = sharding.constrain(sharding.constrain_rows(own[1]), ("spread_batch", None, None))
            out = decode_backend.attend(q_BTNH, (own[0], mask_BTS), prompt, scoring, use_kernels=False)
            return sharding.constrain_fitting(out, ("batch", None, "heads", None))
        if not self._divides_queries(q_BTNH, prompt, scoring):
            return decode_backend.attend(q_BTNH, own, prompt, scoring, use_kernels=use_kernels)
        readers = sharding.parts("heads") // self.heads

        def local(q_BTNH: Array, own: Slots) -> Array:
            mine = lax.axis_index("tensor") // readers
            layer = kv.LayerKV(*(lax.dynamic_slice_in_dim(x, mine, 1, axis=1) for x in own[0]))
            return decode_backend.attend(q_BTNH, (layer, own[1]), None, scoring, use_kernels=False)

        rows = sharding.spec_of(("batch" if self.rows % sharding.parts("batch") == 0 else None,))
        by_head = PartitionSpec(*rows, None, "tensor", None)
        out_BTNH: Array = jax.shard_map(local, in_specs=(by_head, rows), out_specs=by_head)(q_BTNH, own)
        return out_BTNH

    def _divides_queries(self, q_BTNH: Array, prompt: Slots | None, scoring: Scoring) -> bool:
        devices = sharding.parts("heads")
        is_even = q_BTNH.shape[2] % devices == 0 and devices % self.heads == 0
        return not kv.splits_heads(self.heads) and is_even and prompt is None and scoring.sinks_N is None

    @property
    def has_rows(self) -> bool:
        """Return True if each device of `tensor` has rows of its own."""
        return self.tokens < FEW_TOKENS and kv.spreads_rows(self.heads, self.rows)
