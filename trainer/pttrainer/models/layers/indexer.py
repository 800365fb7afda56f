"""The indexer of sparse attention: a small attention of its own that chooses which tokens a query sees.

It reads the stream and the vector that queries come from. Nothing trains it here, and it has no adapters
(`attention.sparse_selection`). Letters: B rows, T tokens, D model, A elements of the queries' vector, I heads, E
elements of one, R of them that turn, first.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from pttrainer.models.attention import rope
from pttrainer.models.attention.sparse_selection import Queries
from pttrainer.models.config import Indexer, ModelConfig
from pttrainer.models.layers.linear import weight, zeros
from pttrainer.models.shapes import parameters

NORM_EPS = 1e-6


class TokenIndexer(nnx.Module):
    """Queries of several heads, one key for all of them, and how much each head counts."""

    weights: nnx.Param[Array]

    def __init__(self, config: ModelConfig, of: Indexer, rngs: nnx.Rngs) -> None:
        assert config.latent is not None
        self.of, self.rotary = of, config.latent.rotary
        specs = parameters.indexer(config)
        for name in ("q", "k", "weights"):
            setattr(self, name, weight(rngs, specs[name], specs[name].shape[-2] ** -0.5))
        self.norm_scale = nnx.Param(jnp.ones(specs["norm_scale"].shape), axes=specs["norm_scale"].axes)
        self.norm_bias = zeros(specs["norm_bias"])

    def __call__(self, x_BTD: Array, queries_BTA: Array, rotation: rope.Rotation) -> tuple[Queries, Array]:
        """Return what it asks with, and its keys [B, T, E]; neither has gradients."""
        x_BTD, queries_BTA = jax.lax.stop_gradient((x_BTD, queries_BTA))
        B, T, _ = x_BTD.shape
        heads, E = self.of.heads, self.of.head_dim
        q_BTIE = self._turned(self._product("q", queries_BTA).reshape(B, T, heads, E), rotation)
        k_BTE = self._turned(self._normed(self._product("k", x_BTD))[:, :, None], rotation)[:, :, 0]
        weights_BTI = x_BTD.astype(jnp.float32) @ jax.lax.stop_gradient(self.weights[...]).astype(jnp.float32)
        return Queries(q_BTIE, weights_BTI * (heads * E) ** -0.5), k_BTE

    def _product(self, name: str, x: Array) -> Array:
        matrix: Array = getattr(self, name)[...]
        return x @ jax.lax.stop_gradient(matrix).astype(x.dtype)

    def _normed(self, x: Array) -> Array:
        """Return (x - mean) / deviation · scale + bias, in float32."""
        x_32 = x.astype(jnp.float32)
        centred = x_32 - jnp.mean(x_32, axis=-1, keepdims=True)
        normed = centred * jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + NORM_EPS)
        scale, bias = jax.lax.stop_gradient((self.norm_scale[...], self.norm_bias[...]))
        return (normed * scale + bias).astype(x.dtype)

    def _turned(self, x_BTXE: Array, rotation: rope.Rotation) -> Array:
        turning, still = x_BTXE[..., : self.rotary], x_BTXE[..., self.rotary :]
        if self.of.interleaved:
            turning = rope.apart(turning)
        return jnp.concatenate([rope.rotate(turning, *rotation[:2]), still], axis=-1)
