"""Grouped-query attention as a module: projections, norms of queries and keys, rotation.

Letters: B rows, T tokens, D model, N query heads, K key/value heads, H head size, L layers.

What a query sees is not decided here but by `attend`, which training and decoding make each in their way. What a config
turns off is neither created nor computed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from pttrainer.models.attention import rope
from pttrainer.models.attention.sparse_selection import Queries
from pttrainer.models.config import ModelConfig
from pttrainer.models.layers.linear import Drop, product, put_matrix, zeros_if
from pttrainer.models.layers.norm import RMSNorm, unit_rms
from pttrainer.models.lora.adapters import Adapters
from pttrainer.models.shapes import parameters

Attend = Callable[[Array, Array | None, Array | None, Array | None], tuple[Array, Any]]
"""(q_BTNH, k_BTKH, v_BTKH, sinks_N) -> (out_BTNH, the caller's state of this layer).

A layer without keys and values of its own gives none: its caller knows those of the layer that it borrows from.
"""


Choosing = Callable[[Queries, Array], Attend]
"""An indexer's queries, and its keys [B, T, E] -> how a layer attends to what they choose."""


class AttentionInputs(NamedTuple):
    """What a layer's attention is given beside the stream.

    drop: of adapters' inputs, in training; is_cached: `attend` reads a cache, in which it stores what it is given.
    choosing: how a layer with an indexer attends.
    """

    rotation: rope.Rotation
    attend: Attend
    drop: Drop | None = None
    is_cached: bool = False
    choosing: Choosing | None = None


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions (arXiv 2305.13245)."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, adapters: Adapters | None = None) -> None:
        c, L, D, of = config, config.layers, config.d_model, parameters.attention(config)
        self.config = config
        for name in (name for name in ("q", "k", "v", "o") if name in of):
            std = (c.heads * c.head_dim * 2 * L) ** -0.5 if name == "o" else D**-0.5
            put_matrix(self, name, of[name], std, rngs, adapters)
        self.q_bias, self.k_bias = zeros_if(of.get("q_bias")), zeros_if(of.get("k_bias"))
        self.v_bias, self.o_bias = zeros_if(of.get("v_bias")), zeros_if(of.get("o_bias"))
        norms = parameters.attention_norms(c)
        self.q_norm = RMSNorm(norms["q_norm"], c) if "q_norm" in norms else None
        self.k_norm = RMSNorm(norms["k_norm"], c) if "k_norm" in norms else None
        self.sinks = zeros_if(of.get("sinks"))

    def __call__(self, x_BTD: Array, inputs: AttentionInputs) -> tuple[Array, Any]:
        """Return the output, and the state that `attend` kept; a cache makes no difference here."""
        c, drop = self.config, inputs.drop
        B, T, _ = x_BTD.shape
        q_BTNH = product(self, "q", x_BTD, drop).reshape(B, T, c.heads, -1)
        if c.gated:
            q_BTNH, gate_BTNH = jnp.split(q_BTNH, 2, axis=-1)
        if c.borrows(0):
            return self._result(*inputs.attend(self._borrowing(q_BTNH, inputs.rotation), None, None, None), drop)
        k_BTKH = product(self, "k", x_BTD, drop).reshape(B, T, c.kv_heads, c.head_dim)
        v_BTKH = k_BTKH
        if not c.values_are_keys:
            v_BTKH = product(self, "v", x_BTD, drop).reshape(B, T, c.kv_heads, c.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q_BTNH, k_BTKH = self._normed(q_BTNH, self.q_norm), self._normed(k_BTKH, self.k_norm)
        if c.value_norm:
            v_BTKH = unit_rms(v_BTKH, c.norm_eps)
        sinks_N = None if self.sinks is None else self.sinks[...]
        if c.interleaved_rope:
            q_BTNH, k_BTKH = rope.apart(q_BTNH), rope.apart(k_BTKH)
        q_BTNH, k_BTKH = rope.rotated(q_BTNH, k_BTKH, inputs.rotation)
        if c.local_l2_norm and c.is_local(0):  # layers of both kinds are not in one stack
            q_BTNH, k_BTKH = unit_rms(q_BTNH, c.norm_eps), unit_rms(k_BTKH, c.norm_eps)
        out_BTNH, kept = inputs.attend(q_BTNH, k_BTKH, v_BTKH, sinks_N)
        if c.gated:
            out_BTNH = out_BTNH * jax.nn.sigmoid(gate_BTNH)
        return self._result(out_BTNH, kept, drop)

    def _borrowing(self, q_BTNH: Array, rotation: rope.Rotation) -> Array:
        """Return the queries of a layer without keys as attention reads them."""
        q_BTNH = q_BTNH if self.q_norm is None else self._normed(q_BTNH, self.q_norm)
        return rope.rotated(q_BTNH, q_BTNH[:, :, :0], rotation)[0]

    def _result(self, out_BTNH: Array, kept: Any, drop: Drop | None) -> tuple[Array, Any]:
        B, T, *_ = out_BTNH.shape
        return product(self, "o", out_BTNH.reshape(B, T, self.config.heads * self.config.head_dim), drop), kept

    def _normed(self, x_BTXH: Array, norm: RMSNorm) -> Array:
        if not self.config.whole_qk_norm:
            return norm(x_BTXH)
        B, T, X, H = x_BTXH.shape
        return norm(x_BTXH.reshape(B, T, X * H)).reshape(B, T, X, H)
