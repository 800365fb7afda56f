"""RMS norm."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from pttrainer.models.config import ModelConfig
from pttrainer.models.shapes.parameters import ParamSpec


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
