"""The parts of a decoder layer, as flax.nnx modules: norm, attention, gated MLP.

Letters: B rows, T tokens, D model, F feed-forward, N query heads, K key/value heads, H head size, L layers.

Weights of all layers are created stacked (leading axis L) and carry the logical names of their axes. What a
config turns off is not created and not computed.
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
from pttrainer.models.adapters import Adapters
from pttrainer.models.config import ModelConfig

Axes = tuple[str | None, ...]
Drop = Callable[[str, Array], Array]
"""(matrix, x_BTX) -> what the matrix's adapter reads of x in training (`dropout`)."""
Attend = Callable[[Array, Array, Array, Array | None], tuple[Array, Any]]
"""(q_BTNH, k_BTKH, v_BTKH, sinks_N) -> (out_BTNH, whatever the caller wants back from this layer)."""

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
}


def weight(rngs: nnx.Rngs, shape: tuple[int, ...], std: float, axes: Axes) -> nnx.Param[Array]:
    """A matrix of normal numbers."""
    return nnx.Param(std * jax.random.truncated_normal(rngs.params(), -3.0, 3.0, shape, jnp.float32), axes=axes)


def zeros(shape: tuple[int, ...], axes: Axes) -> nnx.Param[Array]:
    """A bias, or whatever starts without effect."""
    return nnx.Param(jnp.zeros(shape, jnp.float32), axes=axes)


class LowRank(nnx.Module):
    """An adapter's part of a product: scale · (x·A)·B. `adapters.init` makes its first numbers."""

    def __init__(self, name: str, matrix: nnx.Param[Array], adapters: Adapters) -> None:
        self.name = name
        *stack, inner, outer = matrix[...].shape
        *stacked, inner_axis, outer_axis = _all_split(matrix.get_metadata()["axes"])
        self.scale = adapters.scale
        self.a = zeros((*stack, inner, adapters.rank), (*stacked, inner_axis, None))
        self.b = zeros((*stack, adapters.rank, outer), (*stacked, None, outer_axis))

    def __call__(self, x: Array) -> Array:
        return ((x @ self.a[...].astype(x.dtype)) * jnp.asarray(self.scale, x.dtype)) @ self.b[...].astype(x.dtype)


def _all_split(axes: Axes) -> Axes:
    """The axes of a matrix as its adapter's two parts are split: a matrix's one axis over `tensor` and the other over
    `fsdp` is enough, each part has only one of them."""
    low = "expert_low_rank" if "expert" in axes else "low_rank"
    return tuple(low if axis in ("heads", "kv_heads", "mlp") else axis for axis in axes)


def low_rank(name: str, matrix: nnx.Param[Array], adapters: Adapters | None) -> LowRank | None:
    """The adapter beside a matrix, where the model has one there."""
    return LowRank(name, matrix, adapters) if adapters is not None and name in adapters.matrices else None


def project(
    x_BTX: Array,
    matrix: nnx.Param[Array],
    bias: nnx.Param[Array] | None = None,
    adapter: LowRank | None = None,
    drop: Drop | None = None,
) -> Array:
    """A product over rows and tokens as one axis: the gradient of the weight contracts over both, and with two
    axes XLA transposes the activations first (a quarter of a step on CPU). A sharded token axis cannot be merged."""
    w = matrix[...].astype(x_BTX.dtype)
    read_BTX = None if drop is None or adapter is None else drop(adapter.name, x_BTX)
    if sharding.splits("sequence"):
        out = _product(x_BTX, w, adapter, read_BTX)
    else:
        B, T, X = x_BTX.shape
        read = None if read_BTX is None else read_BTX.reshape(B * T, X)
        out = _product(x_BTX.reshape(B * T, X), w, adapter, read).reshape(B, T, w.shape[1])
    return out if bias is None else out + bias[...].astype(x_BTX.dtype)


def _product(x: Array, w: Array, adapter: LowRank | None, read: Array | None) -> Array:
    """read: what dropout leaves the adapter of x."""
    return x @ w if adapter is None else x @ w + adapter(x if read is None else read)


class RMSNorm(nnx.Module):
    """x / rms(x) · scale, computed in float32 (arXiv 1910.07467); zero-centred: times 1 + scale."""

    def __init__(self, shape: tuple[int, ...], config: ModelConfig, axes: Axes) -> None:
        self.eps, self.offset = config.norm_eps, 1.0 if config.zero_centred_norms else 0.0
        self.scale = nnx.Param(jnp.full(shape, 1.0 - self.offset, jnp.float32), axes=axes)

    def __call__(self, x_BTD: Array) -> Array:
        x = x_BTD.astype(jnp.float32)
        x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.eps)
        scale = self.scale[...] if not self.offset else self.offset + self.scale[...].astype(jnp.float32)
        return (x * scale).astype(x_BTD.dtype)


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions (arXiv 2305.13245)."""

    def __init__(self, config: ModelConfig, layers: int, rngs: nnx.Rngs, adapters: Adapters | None = None) -> None:
        c, L, D = config, layers, config.d_model
        q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        self.config = config
        self.q = weight(rngs, (L, D, q), D**-0.5, ("layer", "embed", "heads"))
        self.k = weight(rngs, (L, D, kv), D**-0.5, ("layer", "embed", "kv_heads"))
        self.v = weight(rngs, (L, D, kv), D**-0.5, ("layer", "embed", "kv_heads"))
        self.o = weight(rngs, (L, q, D), (q * 2 * L) ** -0.5, ("layer", "heads", "embed"))
        self.q_bias = zeros((L, q), ("layer", "heads")) if c.qkv_bias else None
        self.k_bias = zeros((L, kv), ("layer", "kv_heads")) if c.qkv_bias else None
        self.v_bias = zeros((L, kv), ("layer", "kv_heads")) if c.qkv_bias else None
        self.o_bias = zeros((L, D), ("layer", "embed")) if c.o_bias else None
        self.q_norm = RMSNorm((L, c.head_dim), c, ("layer", None)) if c.qk_norm else None
        self.k_norm = RMSNorm((L, c.head_dim), c, ("layer", None)) if c.qk_norm else None
        self.sinks = zeros((L, c.heads), ("layer", "heads")) if c.sinks else None
        self.q_lora, self.k_lora = low_rank("q", self.q, adapters), low_rank("k", self.k, adapters)
        self.v_lora, self.o_lora = low_rank("v", self.v, adapters), low_rank("o", self.o, adapters)

    def __call__(
        self, x_BTD: Array, rotation: tuple[Array, Array], attend: Attend, drop: Drop | None = None
    ) -> tuple[Array, Any]:
        c = self.config
        B, T, _ = x_BTD.shape
        q_BTNH = project(x_BTD, self.q, self.q_bias, self.q_lora, drop).reshape(B, T, c.heads, c.head_dim)
        k_BTKH = project(x_BTD, self.k, self.k_bias, self.k_lora, drop).reshape(B, T, c.kv_heads, c.head_dim)
        v_BTKH = project(x_BTD, self.v, self.v_bias, self.v_lora, drop).reshape(B, T, c.kv_heads, c.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q_BTNH, k_BTKH = self.q_norm(q_BTNH), self.k_norm(k_BTKH)
        sinks_N = None if self.sinks is None else self.sinks[...]
        out_BTNH, kept = attend(rope.rotate(q_BTNH, *rotation), rope.rotate(k_BTKH, *rotation), v_BTKH, sinks_N)
        out_BTX = out_BTNH.reshape(B, T, c.heads * c.head_dim)
        return project(out_BTX, self.o, self.o_bias, self.o_lora, drop), kept


class GatedMLP(nnx.Module):
    """activation(x·gate) · (x·up) · down (arXiv 2002.05202)."""

    def __init__(self, config: ModelConfig, layers: int, rngs: nnx.Rngs, adapters: Adapters | None = None) -> None:
        D, F, L = config.d_model, config.d_ff, layers
        self.activation = config.activation
        self.gate = weight(rngs, (L, D, F), D**-0.5, ("layer", "embed", "mlp"))
        self.up = weight(rngs, (L, D, F), D**-0.5, ("layer", "embed", "mlp"))
        self.down = weight(rngs, (L, F, D), (F * 2 * L) ** -0.5, ("layer", "mlp", "embed"))
        self.gate_bias = zeros((L, F), ("layer", "mlp")) if config.mlp_bias else None
        self.up_bias = zeros((L, F), ("layer", "mlp")) if config.mlp_bias else None
        self.down_bias = zeros((L, D), ("layer", "embed")) if config.mlp_bias else None
        self.gate_lora, self.up_lora = low_rank("gate", self.gate, adapters), low_rank("up", self.up, adapters)
        self.down_lora = low_rank("down", self.down, adapters)

    def __call__(self, x_BTD: Array, drop: Drop | None = None) -> Array:
        gate_BTF = ACTIVATIONS[self.activation](project(x_BTD, self.gate, self.gate_bias, self.gate_lora, drop))
        hidden_BTF = gate_BTF * project(x_BTD, self.up, self.up_bias, self.up_lora, drop)
        return project(hidden_BTF, self.down, self.down_bias, self.down_lora, drop)
