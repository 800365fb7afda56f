"""The one decoder: embedding, layers, final norm, as flax.nnx modules.

Letters: B rows, T tokens, V vocabulary, D model, F feed-forward, N query heads, K key/value heads, H head size.

A layer is written once and used by training and decoding alike: what differs is only the `attend` function
it is given. Weights of all layers are created stacked (leading axis L), so that training scans over them and
compile time does not grow with depth. Every weight carries the logical names of its axes; `sharding` maps
those to the mesh. The output head is not applied here: `losses` and `rollout` do, in pieces, so that
B × T × V logits never exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from pttrainer import sharding
from pttrainer.models import rope
from pttrainer.models.config import ModelConfig

Attend = Callable[[Array, Array, Array], tuple[Array, Any]]
"""(q_BTNH, k_BTKH, v_BTKH) -> (out_BTNH, whatever the caller wants back from this layer)."""

EMBEDDING_STD = 0.02
"""Small, so that a fresh model's loss is close to ln V."""


def _weight(rngs: nnx.Rngs, shape: tuple[int, ...], std: float, axes: tuple[str | None, ...]) -> nnx.Param[Array]:
    return nnx.Param(std * jax.random.truncated_normal(rngs.params(), -3.0, 3.0, shape, jnp.float32), axes=axes)


def _project(x_BTX: Array, weight: nnx.Param[Array]) -> Array:
    """A product over rows and tokens as one axis: the gradient of the weight contracts over both, and with two
    axes XLA transposes the activations first (a quarter of a step on CPU). A sharded token axis cannot be merged."""
    w = weight[...].astype(x_BTX.dtype)
    if sharding.splits("sequence"):
        return x_BTX @ w
    B, T, X = x_BTX.shape
    return (x_BTX.reshape(B * T, X) @ w).reshape(B, T, w.shape[1])


class RMSNorm(nnx.Module):
    """x / rms(x) · scale, computed in float32 (arXiv 1910.07467)."""

    def __init__(self, shape: tuple[int, ...], eps: float, axes: tuple[str | None, ...]) -> None:
        self.eps = eps
        self.scale = nnx.Param(jnp.ones(shape, jnp.float32), axes=axes)

    def __call__(self, x_BTD: Array) -> Array:
        x = x_BTD.astype(jnp.float32)
        x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.eps)
        return (x * self.scale[...]).astype(x_BTD.dtype)


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions (arXiv 2305.13245)."""

    def __init__(self, config: ModelConfig, layers: int, rngs: nnx.Rngs) -> None:
        c, L = config, layers
        self.config = config
        std = c.d_model**-0.5
        self.q = _weight(rngs, (L, c.d_model, c.heads * c.head_dim), std, ("layer", "embed", "heads"))
        self.k = _weight(rngs, (L, c.d_model, c.kv_heads * c.head_dim), std, ("layer", "embed", "kv_heads"))
        self.v = _weight(rngs, (L, c.d_model, c.kv_heads * c.head_dim), std, ("layer", "embed", "kv_heads"))
        out_std = (c.heads * c.head_dim * 2 * L) ** -0.5
        self.o = _weight(rngs, (L, c.heads * c.head_dim, c.d_model), out_std, ("layer", "heads", "embed"))

    def __call__(self, x_BTD: Array, rotation: tuple[Array, Array], attend: Attend) -> tuple[Array, Any]:
        c = self.config
        B, T, _ = x_BTD.shape
        q_BTNH = _project(x_BTD, self.q).reshape(B, T, c.heads, c.head_dim)
        k_BTKH = _project(x_BTD, self.k).reshape(B, T, c.kv_heads, c.head_dim)
        v_BTKH = _project(x_BTD, self.v).reshape(B, T, c.kv_heads, c.head_dim)
        out_BTNH, kept = attend(rope.rotate(q_BTNH, *rotation), rope.rotate(k_BTKH, *rotation), v_BTKH)
        return _project(out_BTNH.reshape(B, T, c.heads * c.head_dim), self.o), kept


class GatedMLP(nnx.Module):
    """SwiGLU: silu(x·gate) · (x·up) · down (arXiv 2002.05202)."""

    def __init__(self, config: ModelConfig, layers: int, rngs: nnx.Rngs) -> None:
        D, F, L = config.d_model, config.d_ff, layers
        self.gate = _weight(rngs, (L, D, F), D**-0.5, ("layer", "embed", "mlp"))
        self.up = _weight(rngs, (L, D, F), D**-0.5, ("layer", "embed", "mlp"))
        self.down = _weight(rngs, (L, F, D), (F * 2 * L) ** -0.5, ("layer", "mlp", "embed"))

    def __call__(self, x_BTD: Array) -> Array:
        return _project(jax.nn.silu(_project(x_BTD, self.gate)) * _project(x_BTD, self.up), self.down)


class DecoderLayer(nnx.Module):
    """Attention and MLP, each behind a norm and added to the stream."""

    def __init__(self, config: ModelConfig, layers: int, rngs: nnx.Rngs) -> None:
        norm_shape, norm_axes = (layers, config.d_model), ("layer", "embed")
        self.attention_norm = RMSNorm(norm_shape, config.norm_eps, norm_axes)
        self.attention = Attention(config, layers, rngs)
        self.mlp_norm = RMSNorm(norm_shape, config.norm_eps, norm_axes)
        self.mlp = GatedMLP(config, layers, rngs)

    def __call__(self, x_BTD: Array, rotation: tuple[Array, Array], attend: Attend) -> tuple[Array, Any]:
        attended_BTD, kept = self.attention(self.attention_norm(x_BTD), rotation, attend)
        x_BTD = x_BTD + attended_BTD
        return x_BTD + self.mlp(self.mlp_norm(x_BTD)), kept


class Decoder(nnx.Module):
    """All weights of a model. `layers` is stacked; the head is absent where it is tied to the embedding."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs) -> None:
        shape = (config.vocab_size, config.d_model)
        self.embedding = _weight(rngs, shape, EMBEDDING_STD, ("vocab", "embed"))
        self.layers = DecoderLayer(config, config.layers, rngs)
        self.norm = RMSNorm((config.d_model,), config.norm_eps, ("embed",))
        if not config.tied_head:
            self.head = _weight(rngs, shape, EMBEDDING_STD, ("vocab", "embed"))
