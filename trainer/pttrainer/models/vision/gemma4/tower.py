"""Gemma 4's tower: patches of images of any proportions to the embeddings of their tokens.

    patches + learned positions of column and row → layers that see all patches of an image, with rotary positions
            → mean of squares of patches, times the root of the width → norm → projection

Patches come in the order of their tokens: those of a token follow each other. Letters: I images, N patches, X numbers
of a patch, D width, H heads, E elements of a head, J tokens of an image, Q patches of a token, M width of the decoder.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from pttrainer.data.tokenization.image_patches import PLACE
from pttrainer.models.attention.dot_product import Scoring, attend_packed
from pttrainer.models.attention.rope import rotate
from pttrainer.models.config import Gemma4Vision, ModelConfig
from pttrainer.models.layers.gated_mlp import ACTIVATIONS
from pttrainer.models.layers.linear import weight, zeros
from pttrainer.models.layers.norm import unit_rms
from pttrainer.models.lora.adapters import Adapters
from pttrainer.models.shapes.parameters import ParamSpec, Weights
from pttrainer.models.vision import parameters
from pttrainer.models.vision.gemma4 import weights as names
from pttrainer.models.vision.matrices import product, put_adapters
from pttrainer.models.vision.norm import ScaledNorm

Rotations = tuple[tuple[Array, Array], tuple[Array, Array]]
"""Cosine and sine [I, N, E/4] of a head's first half, which turns by the column, and of the second, by the row."""


class Gemma4Layer(nnx.Module):
    """Attention over an image's patches and a gated MLP, each between two norms and added to the stream; stacked."""

    attention_norm: ScaledNorm
    attention_post_norm: ScaledNorm
    mlp_norm: ScaledNorm
    mlp_post_norm: ScaledNorm
    q_norm: ScaledNorm
    k_norm: ScaledNorm

    def __init__(self, of: Gemma4Vision, specs: Weights, rngs: nnx.Rngs, adapters: Adapters | None) -> None:
        self.of = of
        for name in names.MATRICES:
            setattr(self, name, weight(rngs, specs[name,], specs[name,].shape[1] ** -0.5))
            for bound in names.BOUNDS * of.clipped:
                setattr(self, f"{name}_{bound}", _unbounded(specs[f"{name}_{bound}",], bound))
        put_adapters(self, names.MATRICES, adapters, ("layers",))
        for name in (*names.NORMS, *names.HEAD_NORMS):
            setattr(self, name, ScaledNorm(specs[name, "scale"], of.norm_eps))

    def __call__(self, x_IND: Array, rotations: Rotations, mask_INN: Array) -> Array:
        """Return the new stream."""
        x_IND = x_IND + self.attention_post_norm(self._attention(self.attention_norm(x_IND), rotations, mask_INN))
        normed_IND = self.mlp_norm(x_IND)
        gate_INF = ACTIVATIONS[self.of.activation](self._product("gate", normed_IND))
        return x_IND + self.mlp_post_norm(self._product("down", gate_INF * self._product("up", normed_IND)))

    def _attention(self, x_IND: Array, rotations: Rotations, mask_INN: Array) -> Array:
        shape = (*x_IND.shape[:2], -1, self.of.head_dim)
        q, k, v = (self._product(name, x_IND).reshape(shape) for name in "qkv")
        q, k = _turned(self.q_norm(q), rotations), _turned(self.k_norm(k), rotations)
        out_INHE = attend_packed(q, k, unit_rms(v, self.of.norm_eps), mask_INN, Scoring(1.0))
        return self._product("o", out_INHE.reshape(*x_IND.shape[:2], -1))

    def _product(self, name: str, x: Array) -> Array:
        if not self.of.clipped:
            return product(self, name, x)
        low, high, least, most = (getattr(self, f"{name}_{bound}")[...].astype(x.dtype) for bound in names.BOUNDS)
        return jnp.clip(product(self, name, jnp.clip(x, low, high)), least, most)


class Gemma4Tower(nnx.Module):
    """The tower and its projection to the decoder's width."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, adapters: Adapters | None) -> None:
        assert isinstance(config.vision, Gemma4Vision)
        self.of = of = config.vision
        specs: Weights = {path[1:]: one for path, one in parameters.tower(config).items()}
        self.patches = weight(rngs, specs["patches",], specs["patches",].shape[0] ** -0.5)
        self.positions = weight(rngs, specs["positions",], of.d_model**-0.5)
        of_layers: Weights = {path[1:]: one for path, one in specs.items() if path[0] == "layers"}
        self.layers = Gemma4Layer(of, of_layers, rngs, adapters)
        if of.standardised:
            self.std_bias, self.std_scale = zeros(specs["std_bias",]), _ones(specs["std_scale",])
        self.projection = weight(rngs, specs["projection",], of.d_model**-0.5)
        put_adapters(self, ("projection",), adapters, ())

    def __call__(self, patches_INX: Array, dtype: str) -> list[Array]:
        """Return the embeddings [I, J, M] of patches (`image_patches`), and nothing for later layers."""
        places_IN2, is_patch_IN = patches_INX[..., :PLACE] - 1, patches_INX[..., 0] > 0
        x_IND = self._embedded(patches_INX[..., PLACE:], places_IN2.astype(jnp.int32), dtype)
        rotations = _rotation(self.of, places_IN2[..., 1]), _rotation(self.of, places_IN2[..., 0])
        mask_INN = jnp.broadcast_to(is_patch_IN[:, None], (*is_patch_IN.shape, is_patch_IN.shape[1]))
        graphdef, stacked = nnx.split(self.layers)

        @jax.checkpoint
        def layer(x_IND: Array, weights: Any) -> tuple[Array, None]:
            return nnx.merge(graphdef, weights)(x_IND, rotations, mask_INN), None

        x_IND, _ = jax.lax.scan(layer, x_IND, stacked)
        tokens_IJD = unit_rms(self._pooled(x_IND).astype(x_IND.dtype), self.of.norm_eps)
        return [product(self, "projection", tokens_IJD)]

    def _embedded(self, pixels_INX: Array, places_IN2: Array, dtype: str) -> Array:
        """Return the embeddings of patches, whose numbers are from 0 to 1 and stand channel by channel."""
        C, P, D = self.of.channels, self.of.patch_size, self.of.d_model
        matrix = self.patches[...].astype(dtype).reshape(P, P, C, D).transpose(2, 0, 1, 3).reshape(-1, D)
        embedded: Array = (2 * (pixels_INX - 0.5)).astype(dtype) @ matrix
        of_columns, of_rows = self.positions[...].astype(dtype)
        row_IN, column_IN = (jnp.maximum(places_IN2[..., side], 0) for side in range(PLACE))
        placed: Array = embedded + (of_columns[column_IN] + of_rows[row_IN])
        return placed

    def _pooled(self, x_IND: Array) -> Array:
        """Return the tokens [I, J, D] in float32, because they are √D times as large as the stream."""
        Q, D = self.of.merge**2, self.of.d_model
        mean_IJD = jnp.mean(x_IND.astype(jnp.float32).reshape(len(x_IND), -1, Q, D), axis=2).astype(x_IND.dtype)
        pooled_IJD: Array = mean_IJD.astype(jnp.float32) * D**0.5
        if not self.of.standardised:
            return pooled_IJD
        bias, scale = (getattr(self, name)[...].astype(jnp.float32) for name in names.STATISTICS)
        moved_IJD: Array = (pooled_IJD - bias) * scale
        return moved_IJD


def _unbounded(of: ParamSpec, bound: str) -> nnx.Param[Array]:
    number = -jnp.inf if bound.endswith("min") else jnp.inf
    return nnx.Param(jnp.full(of.shape, number, jnp.float32), axes=of.axes)


def _ones(of: ParamSpec) -> nnx.Param[Array]:
    return nnx.Param(jnp.ones(of.shape, jnp.float32), axes=of.axes)


def _rotation(of: Gemma4Vision, places_IN: Array) -> tuple[Array, Array]:
    """Return cosine and sine [I, N, E/4] of a half of a head."""
    half = of.head_dim // 2
    inverse = 1.0 / of.theta ** (jnp.arange(0, half, 2, dtype=jnp.float32) / half)
    angles = places_IN[..., None] * inverse
    return jnp.cos(angles), jnp.sin(angles)


def _turned(x_INHE: Array, rotations: Rotations) -> Array:
    halves = jnp.split(x_INHE, 2, axis=-1)
    return jnp.concatenate([rotate(half, *by) for half, by in zip(halves, rotations, strict=True)], axis=-1)
