"""The parts of a decoder layer, as flax.nnx modules: norm, attention, gated MLP.

Letters: B rows, T tokens, D model, F feed-forward, N query heads, K key/value heads, H head size, L layers.

Weights of all layers are created stacked (leading axis L) and carry the logical names of their axes, as in
`parameters`. What a config turns off is neither created nor computed.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from pttrainer.models import decode_backend, parameters
from pttrainer.models.attention import rope
from pttrainer.models.config import ModelConfig
from pttrainer.models.lora.adapters import Adapters
from pttrainer.models.parameters import ParamSpec
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.explicit_collectives import SplitMatrix

Drop = Callable[[str, Array], Array]
"""(matrix, x_BTX) -> the matrix's adapter's input in training (`lora_dropout`)."""
Attend = Callable[[Array, Array, Array, Array | None], tuple[Array, Any]]
"""(q_BTNH, k_BTKH, v_BTKH, sinks_N) -> (out_BTNH, the caller's state of this layer)."""

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
}


def weight(rngs: nnx.Rngs, of: ParamSpec, std: float) -> nnx.Param[Array]:
    """Create a matrix of normal numbers."""
    return nnx.Param(std * jax.random.truncated_normal(rngs.params(), -3.0, 3.0, of.shape, jnp.float32), axes=of.axes)


def zeros(of: ParamSpec) -> nnx.Param[Array]:
    """Create a bias, or another weight that starts without effect."""
    return nnx.Param(jnp.zeros(of.shape, jnp.float32), axes=of.axes)


def zeros_if(of: ParamSpec | None) -> nnx.Param[Array] | None:
    """Create zeros, or None if the model lacks this weight."""
    return None if of is None else zeros(of)


class LowRank(nnx.Module):
    """An adapter's part of a product: scale · (x·A)·B. `init_and_merge.init` makes its first numbers."""

    def __init__(self, name: str, matrix: nnx.Param[Array], adapters: Adapters) -> None:
        self.name = name
        self.scale = adapters.scale
        of = parameters.low_rank(ParamSpec(matrix[...].shape, matrix.get_metadata()["axes"]), adapters.rank)
        self.a, self.b = zeros(of["a"]), zeros(of["b"])

    def __call__(self, x: Array) -> Array:
        """Return scale · (x·A)·B."""
        return ((x @ self.a[...].astype(x.dtype)) * jnp.asarray(self.scale, x.dtype)) @ self.b[...].astype(x.dtype)


def low_rank(name: str, matrix: nnx.Param[Array], adapters: Adapters | None) -> LowRank | None:
    """Return the adapter of a matrix, if the model has one there."""
    return LowRank(name, matrix, adapters) if adapters is not None and name in adapters.matrices else None


def project(
    x_BTX: Array,
    matrix: nnx.Param[Array],
    bias: nnx.Param[Array] | None = None,
    adapter: LowRank | None = None,
    drop: Drop | None = None,
) -> Array:
    """Multiply rows and tokens as one axis by the matrix [X, Y] (column-blocked on a sampling CPU).

    The gradient of the weight contracts over both axes, and with two axes XLA transposes the activations first (a
    quarter of a step on CPU). A sharded token axis cannot be merged.
    """
    w = matrix[...].astype(x_BTX.dtype)
    read_BTX = None if drop is None or adapter is None else drop(adapter.name, x_BTX)
    if sharding.is_split("sequence") or isinstance(w, SplitMatrix):
        out = _product(x_BTX, w, adapter, read_BTX)
    else:
        B, T, X = x_BTX.shape
        read = None if read_BTX is None else read_BTX.reshape(B * T, X)
        out = _product(x_BTX.reshape(B * T, X), w, adapter, read).reshape(B, T, -1)
    return out if bias is None else out + bias[...].astype(x_BTX.dtype)


def _product(x: Array, w: Array, adapter: LowRank | None, read: Array | None) -> Array:
    """Return the product; read: the adapter's input after dropout."""
    out = decode_backend.product(x, w)
    return out if adapter is None else out + adapter(x if read is None else read)


def unit_rms(x: Array, eps: float) -> Array:
    """Return x / rms(x), computed in float32."""
    x_32 = x.astype(jnp.float32)
    return (x_32 * jax.lax.rsqrt(jnp.mean(x_32 * x_32, axis=-1, keepdims=True) + eps)).astype(x.dtype)


class RMSNorm(nnx.Module):
    """x / rms(x) · scale, computed in float32 (arXiv 1910.07467); zero-centred: times 1 + scale."""

    def __init__(self, of: ParamSpec, config: ModelConfig, eps: float | None = None) -> None:
        self.eps, self.offset = config.norm_eps if eps is None else eps, 1.0 if config.zero_centred_norms else 0.0
        self.scale = nnx.Param(jnp.full(of.shape, 1.0 - self.offset, jnp.float32), axes=of.axes)

    def __call__(self, x_BTD: Array) -> Array:
        """Return the normed activations."""
        x = unit_rms(x_BTD.astype(jnp.float32), self.eps)
        scale = self.scale[...] if not self.offset else self.offset + self.scale[...].astype(jnp.float32)
        return (x * scale).astype(x_BTD.dtype)


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions (arXiv 2305.13245)."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, adapters: Adapters | None = None) -> None:
        c, L, D, of = config, config.layers, config.d_model, parameters.attention(config)
        self.config = config
        self.q = weight(rngs, of["q"], D**-0.5)
        self.k = weight(rngs, of["k"], D**-0.5)
        self.v = weight(rngs, of["v"], D**-0.5)
        self.o = weight(rngs, of["o"], (c.heads * c.head_dim * 2 * L) ** -0.5)
        self.q_bias, self.k_bias = zeros_if(of.get("q_bias")), zeros_if(of.get("k_bias"))
        self.v_bias, self.o_bias = zeros_if(of.get("v_bias")), zeros_if(of.get("o_bias"))
        norms = parameters.attention_norms(c)
        self.q_norm = RMSNorm(norms["q_norm"], c) if c.qk_norm else None
        self.k_norm = RMSNorm(norms["k_norm"], c) if c.qk_norm else None
        self.sinks = zeros_if(of.get("sinks"))
        self.q_lora, self.k_lora = low_rank("q", self.q, adapters), low_rank("k", self.k, adapters)
        self.v_lora, self.o_lora = low_rank("v", self.v, adapters), low_rank("o", self.o, adapters)

    def __call__(
        self,
        x_BTD: Array,
        rotation: rope.Rotation,
        attend: Attend,
        drop: Drop | None = None,
        *,
        is_cached: bool = False,
    ) -> tuple[Array, Any]:
        """Return the output, and the state that `attend` kept; a cache (is_cached) makes no difference here."""
        c = self.config
        B, T, _ = x_BTD.shape
        q_BTNH = project(x_BTD, self.q, self.q_bias, self.q_lora, drop).reshape(B, T, c.heads, -1)
        if c.gated:
            q_BTNH, gate_BTNH = jnp.split(q_BTNH, 2, axis=-1)
        k_BTKH = project(x_BTD, self.k, self.k_bias, self.k_lora, drop).reshape(B, T, c.kv_heads, c.head_dim)
        v_BTKH = project(x_BTD, self.v, self.v_bias, self.v_lora, drop).reshape(B, T, c.kv_heads, c.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q_BTNH, k_BTKH = self._normed(q_BTNH, self.q_norm), self._normed(k_BTKH, self.k_norm)
        sinks_N = None if self.sinks is None else self.sinks[...]
        if c.interleaved_rope:
            q_BTNH, k_BTKH = rope.apart(q_BTNH), rope.apart(k_BTKH)
        q_BTNH, k_BTKH = rope.rotated(q_BTNH, k_BTKH, rotation)
        if c.local_l2_norm and c.is_local(0):  # layers of both kinds are not in one stack
            q_BTNH, k_BTKH = unit_rms(q_BTNH, c.norm_eps), unit_rms(k_BTKH, c.norm_eps)
        out_BTNH, kept = attend(q_BTNH, k_BTKH, v_BTKH, sinks_N)
        if c.gated:
            out_BTNH = out_BTNH * jax.nn.sigmoid(gate_BTNH)
        out_BTX = out_BTNH.reshape(B, T, c.heads * c.head_dim)
        return project(out_BTX, self.o, self.o_bias, self.o_lora, drop), kept

    def _normed(self, x_BTXH: Array, norm: RMSNorm) -> Array:
        if not self.config.whole_qk_norm:
            return norm(x_BTXH)
        B, T, X, H = x_BTXH.shape
        return norm(x_BTXH.reshape(B, T, X * H)).reshape(B, T, X, H)


class GatedMLP(nnx.Module):
    """activation(x·gate) · (x·up) · down (arXiv 2002.05202)."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, adapters: Adapters | None = None) -> None:
        D, of = config.d_model, parameters.gated_mlp(config)
        self.activation = config.activation
        self.gate = weight(rngs, of["gate"], D**-0.5)
        self.up = weight(rngs, of["up"], D**-0.5)
        self.down = weight(rngs, of["down"], (config.d_ff * 2 * config.layers) ** -0.5)
        self.gate_bias, self.up_bias = zeros_if(of.get("gate_bias")), zeros_if(of.get("up_bias"))
        self.down_bias = zeros_if(of.get("down_bias"))
        self.gate_lora, self.up_lora = low_rank("gate", self.gate, adapters), low_rank("up", self.up, adapters)
        self.down_lora = low_rank("down", self.down, adapters)

    def __call__(self, x_BTD: Array, drop: Drop | None = None) -> Array:
        """Return activation(x·gate) · (x·up) · down."""
        gate_BTF = ACTIVATIONS[self.activation](project(x_BTD, self.gate, self.gate_bias, self.gate_lora, drop))
        hidden_BTF = gate_BTF * project(x_BTD, self.up, self.up_bias, self.up_lora, drop)
        return project(hidden_BTF, self.down, self.down_bias, self.down_lora, drop)
