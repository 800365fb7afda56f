"""A layer's gated delta rule as a module: projections, decays, and the gated norm of its results (`gated_delta`).

Letters: B rows, T tokens, D model, V value heads, U size of a value; others as in `gated_delta`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from pttrainer.models.config import ModelConfig
from pttrainer.models.layers.attention import AttentionInputs
from pttrainer.models.layers.linear import Drop, product, put_matrix, zeros
from pttrainer.models.layers.norm import unit_rms
from pttrainer.models.lora.adapters import Adapters
from pttrainer.models.shapes import parameters
from pttrainer.runtime.distributed import sharding


class DeltaAttention(nnx.Module):
    """In place of attention. `attend` gets the convolution's inputs, decays, rates and weights [W, C]."""

    conv: nnx.Param[Array]
    decay: nnx.Param[Array]
    decay_bias: nnx.Param[Array]
    norm_scale: nnx.Param[Array]

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, adapters: Adapters | None = None) -> None:
        assert config.delta is not None
        self.config, self.delta = config, config.delta
        for name, of in parameters.attention(config).items():
            if len(of.shape) == 2:
                setattr(self, name, zeros(of))
                continue
            inputs = of.shape[-1 if name == "conv" else -2] * (2 * config.layers if name == "o" else 1)
            put_matrix(self, name, of, inputs**-0.5, rngs, adapters)
        self.norm_scale[...] = jnp.ones_like(self.norm_scale[...])

    def __call__(self, x_BTD: Array, inputs: AttentionInputs) -> tuple[Array, Any]:
        """Return the output, and the state that `attend` kept. Positions are not read."""
        (B, T, _), drop = x_BTD.shape, inputs.drop
        mixed_BTC, z_BTX, b_BTV, a_BTV = self._inputs(x_BTD, drop)
        bias_V, decay_V = (x[...].astype(jnp.float32) for x in (self.decay_bias, self.decay))
        g_BTV = -jnp.exp(decay_V) * jax.nn.softplus(a_BTV.astype(jnp.float32) + bias_V)
        beta_BTV = jax.nn.sigmoid(b_BTV.astype(jnp.float32))
        # States go from token to token, so every device needs its rows whole.
        mixed_BTC, g_BTV, beta_BTV = (_whole_rows(x) for x in (mixed_BTC, g_BTV, beta_BTV))
        out_BTVU, kept = inputs.attend(mixed_BTC, g_BTV, beta_BTV, self.conv[...][:, 0].T)
        gated_BTX = self._gated(out_BTVU, z_BTX.reshape(out_BTVU.shape)).reshape(B, T, -1)
        return product(self, "o", gated_BTX, drop), kept

    def _inputs(self, x_BTD: Array, drop: Drop | None) -> tuple[Array, Array, Array, Array]:
        """Return what is convolved, the gate of the results, and what rates and decays come from."""
        of = self.delta
        if not of.by_head:
            qkv, z, b, a = (product(self, name, x_BTD, drop) for name in ("qkv", "z", "b", "a"))
            return qkv, z, b, a
        B, T, _ = x_BTD.shape
        shared = of.value_heads // of.key_heads * of.value_dim
        by_head = product(self, "qkvz", x_BTD, drop).reshape(B, T, of.key_heads, -1)
        parts = jnp.split(by_head, [of.key_dim, 2 * of.key_dim, 2 * of.key_dim + shared], axis=-1)
        q, k, v, z = (part.reshape(B, T, -1) for part in parts)
        b, a = jnp.split(product(self, "ba", x_BTD, drop).reshape(B, T, of.key_heads, -1), 2, axis=-1)
        return jnp.concatenate([q, k, v], axis=-1), z, b.reshape(B, T, -1), a.reshape(B, T, -1)

    def _gated(self, x_BTVU: Array, z_BTVU: Array) -> Array:
        """Return the normed results times silu of their gate."""
        x = unit_rms(x_BTVU.astype(jnp.float32), self.config.norm_eps)
        scaled = self.norm_scale[...].astype(jnp.float32) * x
        return (scaled * jax.nn.silu(z_BTVU.astype(jnp.float32))).astype(x_BTVU.dtype)


def _whole_rows(x_BTX: Array) -> Array:
    return sharding.constrain(x_BTX, ("batch", None, None)) if sharding.is_split("sequence") else x_BTX
