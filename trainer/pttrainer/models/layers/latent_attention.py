"""Multi-head latent attention (arXiv 2405.04434): keys and values of all heads come from one short vector per token.

Letters: B rows, T tokens, N heads, H head size, U of its elements that do not turn, R of those that do, V size of a
value, C size of the vector (the latent), A rank of an adapter.

In training the latent is expanded to every head's keys and values. Decoding stores the latent, followed by the R
elements that all heads share, as the keys of a single head, and attends to that: the matrix that would expand keys is
applied to the queries, and the one that would expand values to the result. Products are associative, so both give the
same numbers up to rounding. Where an indexer chooses what a query sees, its keys are stored behind these elements.
"""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from pttrainer.models.attention import rope
from pttrainer.models.attention.kv_cache import LayerKV
from pttrainer.models.config import ModelConfig
from pttrainer.models.layers.attention import AttentionInputs
from pttrainer.models.layers.indexer import TokenIndexer
from pttrainer.models.layers.linear import Drop, LowRank, product, put_matrix, zeros_if
from pttrainer.models.layers.norm import RMSNorm
from pttrainer.models.lora.adapters import Adapters
from pttrainer.models.shapes import parameters

EPSILON = 1e-6
"""Of the norms of latents, whatever the model's other norms have."""


class LatentAttention(nnx.Module):
    """Queries, optionally from a latent of their own, and keys and values from the latent that is stored."""

    q_norm: RMSNorm
    kv_norm: RMSNorm
    kv_up: nnx.Param[Array]
    kv_up_lora: LowRank | None

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, adapters: Adapters | None = None) -> None:
        assert config.latent is not None
        self.config, self.latent = config, config.latent
        weights = parameters.attention(config)
        for name in (name for name in weights if not name.endswith("_bias")):
            inputs = weights[name].shape[-2] * (2 * config.layers if name == "o" else 1)
            put_matrix(self, name, weights[name], inputs**-0.5, rngs, adapters)
        self.q_down_bias, self.kv_down_bias = (
            zeros_if(weights.get("q_down_bias")),
            zeros_if(weights.get("kv_down_bias")),
        )
        self.o_bias = zeros_if(weights.get("o_bias"))
        for name, of in parameters.attention_norms(config).items():
            setattr(self, name, RMSNorm(of, config, EPSILON))
        indexer = config.latent.own_indexer
        self.indexer = None if indexer is None else TokenIndexer(config, indexer, rngs)

    def __call__(self, x_BTD: Array, inputs: AttentionInputs) -> tuple[Array, Any]:
        """Return the output, and the state that `attend` kept, which in a cache are keys only."""
        c, of, drop = self.config, self.latent, inputs.drop
        B, T, _ = x_BTD.shape
        source_BTA = self._source_of_queries(x_BTD, drop)
        q_BTNH = product(self, self._query_matrix, source_BTA, drop).reshape(B, T, c.heads, c.head_dim)
        turned_BTNR = self._rotated(q_BTNH[..., c.head_dim - of.rotary :], inputs.rotation)
        both_BTX = product(self, "kv_down", x_BTD, drop)
        latent_BTC = self.kv_norm(both_BTX[..., : of.rank])
        shared_BT1R = self._rotated(both_BTX[:, :, None, of.rank :], inputs.rotation)
        q = q_BTNH[..., : c.head_dim - of.rotary], turned_BTNR
        if self.indexer is not None:
            assert inputs.choosing is not None
            inputs = inputs._replace(attend=inputs.choosing(*self.indexer(x_BTD, source_BTA, inputs.rotation)))
        way = self._absorbed if inputs.is_cached else self._expanded
        out_BTNV, kept = way(q, latent_BTC, shared_BT1R, inputs)
        return product(self, "o", out_BTNV.reshape(B, T, -1), drop), kept

    def _expanded(
        self, q: tuple[Array, Array], latent_BTC: Array, shared_BT1R: Array, inputs: AttentionInputs
    ) -> tuple[Array, Any]:
        B, T, N, U = q[0].shape
        expanded_BTNX = product(self, "kv_up", latent_BTC, inputs.drop).reshape(B, T, N, -1)
        shared_BTNR = jnp.broadcast_to(shared_BT1R, (B, T, N, shared_BT1R.shape[-1]))
        k_BTNH = jnp.concatenate([expanded_BTNX[..., :U], shared_BTNR], axis=-1)
        return inputs.attend(jnp.concatenate(q, axis=-1), k_BTNH, expanded_BTNX[..., U:], None)

    def _absorbed(
        self, q: tuple[Array, Array], latent_BTC: Array, shared_BT1R: Array, inputs: AttentionInputs
    ) -> tuple[Array, Any]:
        N, U = q[0].shape[-2:]
        up_CNX = self.kv_up[...].astype(latent_BTC.dtype).reshape(latent_BTC.shape[-1], N, -1)
        q_BTNC = jnp.einsum("btnu,cnu->btnc", q[0], up_CNX[..., :U])
        if self.kv_up_lora is not None:
            a_CA, b_ANX = _parts(self.kv_up_lora, N, latent_BTC.dtype)
            q_BTNC += jnp.einsum("btna,ca->btnc", jnp.einsum("btnu,anu->btna", q[0], b_ANX[..., :U]), a_CA)
        key_BT1X = jnp.concatenate([latent_BTC[:, :, None], shared_BT1R], axis=-1)
        nothing = key_BT1X[..., :0]
        out_BTNC, kept = inputs.attend(jnp.concatenate([q_BTNC, q[1]], axis=-1), key_BT1X, nothing, None)
        out_BTNV = jnp.einsum("btnc,cnv->btnv", out_BTNC, up_CNX[..., U:])
        if self.kv_up_lora is not None:
            out_BTNV += jnp.einsum("btna,anv->btnv", jnp.einsum("btnc,ca->btna", out_BTNC, a_CA), b_ANX[..., U:])
        return out_BTNV, kept

    def _source_of_queries(self, x_BTD: Array, drop: Drop | None) -> Array:
        """Return what queries are a product of: their own latent, if the model has one."""
        return x_BTD if self.latent.query_rank is None else self.q_norm(product(self, "q_down", x_BTD, drop))

    @property
    def _query_matrix(self) -> str:
        return "q" if self.latent.query_rank is None else "q_up"

    def _rotated(self, x_BTNR: Array, rotation: rope.Rotation) -> Array:
        """Rotate; pairs that are stored side by side go to the halves first, in queries as in keys."""
        if self.latent.interleaved:
            x_BTNR = rope.apart(x_BTNR)
        return rope.rotate(x_BTNR, *rotation[:2])


def _parts(adapter: LowRank, N: int, dtype: Any) -> tuple[Array, Array]:
    """Return both parts of the adapter that expands latents, the first one scaled, the other by head."""
    b_AX = adapter.b[...].astype(dtype)
    return adapter.a[...].astype(dtype) * jnp.asarray(adapter.scale, dtype), b_AX.reshape(b_AX.shape[0], N, -1)


def as_stored(layer: LayerKV, rank: int) -> LayerKV:
    """Return what a query reads of a cache without values: they are the keys' first elements."""
    return LayerKV(layer.k_BKHS, jnp.swapaxes(layer.k_BKHS[:, :, :rank], 2, 3))
