"""The gradient of the output head, summed over chunks of tokens.

Letters: N tokens of a chunk, V vocabulary, D model, S shards of the rows.

Every device adds up what its own rows contribute; the sums of all devices are added once, behind the last chunk. Left
to itself the compiler adds them up over the network in every chunk, which on TPUs takes longer than the arithmetic.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from pttrainer.losses.chunking import Chunks
from pttrainer.runtime.distributed import sharding


class HeadGradient(NamedTuple):
    """How the sum is held: [V, D], or [S, V, D] where the mesh cuts the rows into S shards."""

    shards: int
    rows: str

    def zeros(self, head_VD: Array) -> Array:
        """The sum before the first chunk, float32."""
        return self._own(jnp.zeros((self.shards, *head_VD.shape) if self.shards > 1 else head_VD.shape, jnp.float32))

    def add(self, total: Array, d_logits_NV: Array, hidden_ND: Array) -> Array:
        """With a chunk's contribution."""
        if self.shards == 1:
            return total + jnp.matmul(d_logits_NV.T, hidden_ND, preferred_element_type=jnp.float32)
        d_logits_SNV, hidden_SND = (x.reshape(self.shards, -1, x.shape[-1]) for x in (d_logits_NV, hidden_ND))
        one_SVD = jnp.einsum("snv,snd->svd", d_logits_SNV, hidden_SND, preferred_element_type=jnp.float32)
        return self._own(total + one_SVD)

    def total(self, total: Array, d_hidden_BTD: Array) -> tuple[Array, Array]:
        """[V, D], of all rows, and the gradient of the hidden states, which nothing reads before the sum is made: the
        compiler would put it off to the optimizer, and keep every device's own through the backward pass."""
        if self.shards == 1:
            return total, d_hidden_BTD
        embed = "embed" if total.shape[-1] % sharding.parts("embed") == 0 else None
        whole_VD = sharding.constrain(jnp.sum(total, axis=0), ("vocab", embed))
        made: tuple[Array, Array] = lax.optimization_barrier((whole_VD, d_hidden_BTD))
        return made

    def _own(self, total: Array) -> Array:
        return total if self.shards == 1 else sharding.constrain(total, (self.rows, "vocab", None))


def head_gradient(parts: Chunks) -> HeadGradient:
    """For the chunks of a batch. Rows that the mesh does not divide are not split."""
    rows = "batch" if parts.pieces == 1 else "sequence_batch"
    shards = sharding.parts(rows)
    return HeadGradient(1 if parts.order_BT.shape[0] % shards else shards, rows)


def gathered(head_VD: Array) -> Array:
    """The head whole along D on every device: once, not in every chunk."""
    return sharding.constrain(head_VD, ("vocab", None))
