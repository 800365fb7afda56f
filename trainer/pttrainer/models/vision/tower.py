"""A vision tower: images to the embeddings of their tokens, as SigLIP and Gemma 3 compute them.

    patches → learned positions → layers that see all patches → norm → mean of squares of patches → norm → projection

Letters: I images, S pixels of a side, C channels, P pixels of a patch's side, N patches, D width, F feed-forward,
H heads, E elements of a head, M width of the decoder, J tokens of an image.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from pttrainer.models.attention import rope
from pttrainer.models.attention.dot_product import Scoring, attend_packed
from pttrainer.models.config import Llama4Vision, ModelConfig, QwenVision, Vision
from pttrainer.models.layers.gated_mlp import ACTIVATIONS
from pttrainer.models.layers.linear import weight, zeros
from pttrainer.models.layers.norm import unit_rms
from pttrainer.models.lora.adapters import Adapters
from pttrainer.models.shapes.parameters import ParamSpec, Weights
from pttrainer.models.vision import names, parameters
from pttrainer.models.vision.matrices import product, put_adapters


class LayerNorm(nnx.Module):
    """(x - mean) / deviation · scale + bias, computed in float32."""

    def __init__(self, scale: ParamSpec, bias: ParamSpec, eps: float) -> None:
        self.eps = eps
        self.scale = nnx.Param(jnp.ones(scale.shape, jnp.float32), axes=scale.axes)
        self.bias = zeros(bias)

    def __call__(self, x: Array) -> Array:
        """Return the normed activations."""
        x_32 = x.astype(jnp.float32)
        centred = x_32 - jnp.mean(x_32, axis=-1, keepdims=True)
        normed = centred * jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + self.eps)
        return (normed * self.scale[...] + self.bias[...]).astype(x.dtype)


class TokenNorm(nnx.Module):
    """x / rms(x) · (1 + scale), before the projection."""

    def __init__(self, of: ParamSpec, eps: float) -> None:
        self.eps = eps
        self.scale = zeros(of)

    def __call__(self, x: Array) -> Array:
        """Return the normed activations."""
        normed = unit_rms(x.astype(jnp.float32), self.eps) * (1.0 + self.scale[...].astype(jnp.float32))
        return normed.astype(x.dtype)


class VisionLayer(nnx.Module):
    """Attention over an image's patches and an MLP, each after a norm and added to the stream; stacked over layers.

    has_interleaved_pairs: the elements of a head that turn together are stored side by side.
    """

    def __init__(
        self,
        of: Vision | QwenVision | Llama4Vision,
        specs: Weights,
        rngs: nnx.Rngs,
        adapters: Adapters | None,
        *,
        has_interleaved_pairs: bool = False,
    ) -> None:
        self.of, self.has_interleaved_pairs = of, has_interleaved_pairs
        for name in names.MATRICES:
            spec = specs[name,]
            setattr(self, name, weight(rngs, spec, spec.shape[1] ** -0.5))
            setattr(self, f"{name}_bias", zeros(specs[f"{name}_bias",]))
        put_adapters(self, names.MATRICES, adapters, ("layers",))
        self.attention_norm, self.mlp_norm = (
            LayerNorm(specs[name, "scale"], specs[name, "bias"], of.norm_eps) for name in names.NORMS
        )

    def __call__(self, x_IND: Array, mask_INN: Array | None = None, rotation: rope.Rotation | None = None) -> Array:
        """Return the new stream. mask_INN: which patches see which; all of them without one."""
        x_IND = x_IND + self._attention(self.attention_norm(x_IND), mask_INN, rotation)
        hidden_INF = ACTIVATIONS[self.of.activation](product(self, "up", self.mlp_norm(x_IND)))
        return x_IND + product(self, "down", hidden_INF)

    def _attention(self, x_IND: Array, mask_INN: Array | None, rotation: rope.Rotation | None) -> Array:
        images, N, D = x_IND.shape
        E = D // self.of.heads
        q, k, v = (product(self, name, x_IND).reshape(images, N, self.of.heads, E) for name in ("q", "k", "v"))
        if self.has_interleaved_pairs:
            q, k = rope.apart(q), rope.apart(k)
        if rotation is not None:
            q, k = rope.rotated(q, k, rotation)
        mask_INN = jnp.ones((images, N, N), bool) if mask_INN is None else mask_INN
        out_INHE = attend_packed(q, k, v, mask_INN, Scoring(E**-0.5))
        return product(self, "o", out_INHE.reshape(images, N, D))


class VisionTower(nnx.Module):
    """The tower and its projection to the decoder's width."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, adapters: Adapters | None) -> None:
        assert isinstance(config.vision, Vision)
        specs: Weights = {path[1:]: one for path, one in parameters.tower(config).items()}
        self.of = of = config.vision
        self.patches = weight(rngs, specs["patches",], (of.channels * of.patch_size**2) ** -0.5)
        self.patches_bias = zeros(specs["patches_bias",])
        self.positions = weight(rngs, specs["positions",], of.d_model**-0.5)
        of_layers: Weights = {path[1:]: one for path, one in specs.items() if path[0] == "layers"}
        self.layers = VisionLayer(of, of_layers, rngs, adapters)
        self.norm = LayerNorm(specs["norm", "scale"], specs["norm", "bias"], of.norm_eps)
        self.token_norm = TokenNorm(specs["token_norm", "scale"], of.norm_eps)
        self.projection = weight(rngs, specs["projection",], of.d_model**-0.5)
        put_adapters(self, ("projection",), adapters, ())

    def __call__(self, pixels_ISSC: Array, dtype: str) -> list[Array]:
        """Return the embeddings [I, J, M] of normalised pixels, and nothing for later layers."""
        x_IND = self._embedded(pixels_ISSC.astype(dtype))
        graphdef, stacked = nnx.split(self.layers)

        @jax.checkpoint
        def layer(x_IND: Array, weights: Any) -> tuple[Array, None]:
            return nnx.merge(graphdef, weights)(x_IND), None

        x_IND, _ = jax.lax.scan(layer, x_IND, stacked)
        tokens_IJD = self.token_norm(self._pooled(self.norm(x_IND)))
        return [product(self, "projection", tokens_IJD)]

    def _embedded(self, pixels_ISSC: Array) -> Array:
        """Return the patches' embeddings: their pixels in the order of the matrix, channel by channel."""
        n, P, C = self.of.patches_per_side, self.of.patch_size, self.of.channels
        cut = pixels_ISSC.reshape(-1, n, P, n, P, C).transpose(0, 1, 3, 5, 2, 4).reshape(-1, n * n, C * P * P)
        matrix = self.patches[...].astype(cut.dtype).reshape(self.of.d_model, -1).T
        embedded: Array = cut @ matrix + self.patches_bias[...].astype(cut.dtype)
        return embedded + self.positions[...].astype(cut.dtype)

    def _pooled(self, x_IND: Array) -> Array:
        """Return the means of squares of patches, row by row."""
        side, D = self.of.tokens_per_side, self.of.d_model
        square = self.of.patches_per_side // side
        grid = x_IND.reshape(-1, side, square, side, square, D)
        return jnp.mean(grid, axis=(2, 4)).reshape(-1, side * side, D)
