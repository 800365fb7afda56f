"""The gradient of the output head, summed over chunks of tokens.

Letters: N tokens of a chunk, V vocabulary, D model, S shards of the rows.

Every device adds up the contributions of its own rows; the sums of all devices are added once, after the last chunk. By
default the compiler adds them over the network in every chunk, which on TPUs takes longer than the arithmetic. On one
CPU the sum is [D, V], the product that is fast there (`cpu_products`), and is transposed once, after the last chunk.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from pttrainer.losses.chunking import Chunks
from pttrainer.runtime import cpu_products
from pttrainer.runtime.distributed import explicit_collectives, sharding


class HeadGradient(NamedTuple):
    """The layout of the sum: [V, D], [S, V, D] if the mesh splits the rows into S shards, or transposed, [D, V]."""

    shards: int
    rows: str
    is_transposed: bool = False

    def zeros(self, head_VD: Array) -> Array:
        """Return the sum before the first chunk, float32."""
        if self.is_transposed:
            return jnp.zeros(head_VD.shape[::-1], jnp.float32)
        return self._own(jnp.zeros((self.shards, *head_VD.shape) if self.shards > 1 else head_VD.shape, jnp.float32))

    def add(self, total: Array, d_logits_NV: Array, hidden_ND: Array) -> Array:
        """Return the sum with a chunk's contribution."""
        if self.is_transposed:
            return total + cpu_products.transposed_product(hidden_ND, d_logits_NV)
        if self.shards == 1:
            return total + jnp.matmul(d_logits_NV.T, hidden_ND, preferred_element_type=jnp.float32)
        d_logits_SNV, hidden_SND = (x.reshape(self.shards, -1, x.shape[-1]) for x in (d_logits_NV, hidden_ND))
        one_SVD = jnp.einsum("snv,snd->svd", d_logits_SNV, hidden_SND, preferred_element_type=jnp.float32)
        return self._own(total + one_SVD)

    def total(self, total: Array, d_hidden_BTD: Array) -> tuple[Array, Array]:
        """Return the sum over all rows, [V, D], and the gradient of the hidden states.

        Nothing reads the latter before the sum is computed: the compiler would delay the sum until the
        optimizer, and keep every device's own through the backward pass.
        """
        if self.shards == 1:
            return total.T if self.is_transposed else total, d_hidden_BTD
        embed = "embed" if total.shape[-1] % sharding.parts("embed") == 0 else None
        whole_VD = sharding.constrain(jnp.sum(total, axis=0), ("vocab", embed))
        whole_VD, d_hidden_BTD = lax.optimization_barrier((whole_VD, d_hidden_BTD))
        if explicit_collectives.are_possible():
            whole_VD = explicit_collectives.table_as_stored(whole_VD)
        return whole_VD, d_hidden_BTD

    def _own(self, total: Array) -> Array:
        return total if self.shards == 1 else sharding.constrain(total, (self.rows, "vocab", None))


def head_gradient(parts: Chunks, head_VD: Array) -> HeadGradient:
    """Return the layout for the chunks of a batch. Rows that the mesh does not divide are not split."""
    if cpu_products.are_used(head_VD.dtype):
        return HeadGradient(1, "batch", is_transposed=True)
    rows = "batch" if parts.pieces == 1 else "sequence_batch"
    shards = sharding.parts(rows)
    return HeadGradient(1 if parts.order_BT.shape[0] % shards else shards, rows)


def gathered(head_VD: Array) -> Array:
    """Gather the head along D on every device: once, not in every chunk."""
    return sharding.constrain(head_VD, ("vocab", None))
