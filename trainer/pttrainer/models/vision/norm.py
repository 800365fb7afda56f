"""The norm of towers without means and biases."""

import jax.numpy as jnp
from flax import nnx
from jax import Array

from pttrainer.models.layers.norm import unit_rms
from pttrainer.models.shapes.parameters import ParamSpec


class ScaledNorm(nnx.Module):
    """x / rms(x) · scale, in float32."""

    def __init__(self, of: ParamSpec, eps: float) -> None:
        self.eps = eps
        self.scale = nnx.Param(jnp.ones(of.shape, jnp.float32), axes=of.axes)

    def __call__(self, x: Array) -> Array:
        """Return the normed activations."""
        return (unit_rms(x.astype(jnp.float32), self.eps) * self.scale[...]).astype(x.dtype)
