"""Qwen's vision tower: patches of images of any size to the embeddings of their tokens.

    patches + interpolated positions → layers with 2-D rotary embedding that see all of their image
            → squares of patches as one → norm, MLP → tokens; the same behind some layers, for the decoder's first ones

Letters: I images, N patches, X numbers of a patch, D width, J tokens, E elements of a head, M width of the decoder.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from pttrainer.data.tokenization.image_patches import PLACE, grid
from pttrainer.models.attention import rope
from pttrainer.models.config import ModelConfig, QwenVision, Rope
from pttrainer.models.layers.linear import weight, zeros
from pttrainer.models.lora.adapters import Adapters
from pttrainer.models.shapes.parameters import ParamSpec, Weights
from pttrainer.models.vision import parameters
from pttrainer.models.vision.matrices import product, put_adapters
from pttrainer.models.vision.tower import LayerNorm, VisionLayer

ROPE = Rope(10_000.0)


class Merger(nnx.Module):
    """Squares of patches to tokens. The norm is of each patch, or of the whole square."""

    def __init__(
        self, name: str, specs: dict[tuple[str, ...], ParamSpec], eps: float, rngs: nnx.Rngs, adapters: Adapters | None
    ) -> None:
        specs = _below(name, specs)
        self.norm = LayerNorm(specs["norm", "scale"], specs["norm", "bias"], eps)
        self.up = weight(rngs, specs["up",], specs["up",].shape[0] ** -0.5)
        self.up_bias = zeros(specs["up_bias",])
        self.down = weight(rngs, specs["down",], specs["down",].shape[0] ** -0.5)
        self.down_bias = zeros(specs["down_bias",])
        put_adapters(self, ("up", "down"), adapters, (name,))

    def __call__(self, x_IND: Array) -> Array:
        """Return the tokens' embeddings [I, J, M]."""
        X = self.up[...].shape[0]
        normed: Array = self.norm(x_IND.reshape(len(x_IND), -1, self.norm.scale[...].shape[0]))
        normed = normed.reshape(len(x_IND), -1, X)
        hidden = jax.nn.gelu(product(self, "up", normed), approximate=False)
        return product(self, "down", hidden)


class QwenTower(nnx.Module):
    """The tower, and what makes tokens of its patches."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, adapters: Adapters | None) -> None:
        assert isinstance(config.vision, QwenVision)
        self.of = of = config.vision
        specs: dict[tuple[str, ...], ParamSpec] = {path[1:]: one for path, one in parameters.tower(config).items()}
        self.patches = weight(rngs, specs["patches",], (of.channels * of.frames * of.patch_size**2) ** -0.5)
        self.patches_bias = zeros(specs["patches_bias",])
        self.positions = weight(rngs, specs["positions",], of.d_model**-0.5)
        self.layers = VisionLayer(of, _below("layers", specs), rngs, adapters)
        self.merger = Merger("merger", specs, of.norm_eps, rngs, adapters)
        for number in range(len(of.deep_layers)):
            name = f"deep_{number}"
            setattr(self, name, Merger(name, specs, of.norm_eps, rngs, adapters))

    def __call__(self, patches_INX: Array, dtype: str) -> list[Array]:
        """Return the tokens' embeddings [I, J, M], and what the decoder's first layers add to them."""
        places_IN2, is_patch_IN = patches_INX[..., :PLACE] - 1, patches_INX[..., 0] > 0
        x_IND = self._embedded(patches_INX[..., PLACE:].astype(dtype))
        x_IND = x_IND + self._interpolated(places_IN2, grid(patches_INX)).astype(x_IND.dtype)
        mask_INN = jnp.broadcast_to(is_patch_IN[:, None], (*is_patch_IN.shape, is_patch_IN.shape[1]))
        rotation = _rotation(places_IN2, self.of.d_model // self.of.heads)
        deep, done = [], 0
        for number, last in enumerate(self.of.deep_layers):
            x_IND = self._through(x_IND, slice(done, last + 1), mask_INN, rotation)
            deep.append(getattr(self, f"deep_{number}")(x_IND))
            done = last + 1
        x_IND = self._through(x_IND, slice(done, None), mask_INN, rotation)
        return [self.merger(x_IND), *deep]

    def _embedded(self, patches_INX: Array) -> Array:
        """Return the patches' embeddings: an image's frames are alike, so the sum of their matrices reads one."""
        matrix = jnp.sum(self.patches[...].astype(jnp.float32), axis=2).reshape(self.of.d_model, -1).T
        embedded: Array = patches_INX @ matrix.astype(patches_INX.dtype)
        return embedded + self.patches_bias[...].astype(patches_INX.dtype)

    def _interpolated(self, places_IN2: Array, sides_I2: Array) -> Array:
        """Return the learned positions between those of the table, whose corners are the image's."""
        side = self.of.positions_per_side
        at_IN2 = jnp.maximum(places_IN2, 0) * (side - 1) / jnp.maximum(sides_I2 - 1, 1)[:, None]
        before_IN2 = jnp.floor(at_IN2).astype(jnp.int32)
        share_IN2 = at_IN2 - before_IN2
        near = [(before_IN2, 1 - share_IN2), (jnp.minimum(before_IN2 + 1, side - 1), share_IN2)]
        positions_IND = jnp.zeros((), jnp.float32)
        for (rows_IN2, of_rows_IN2), (columns_IN2, of_columns_IN2) in itertools.product(near, repeat=2):
            own_IND = self.positions[...][rows_IN2[..., 0] * side + columns_IN2[..., 1]].astype(jnp.float32)
            share_IN = of_rows_IN2[..., 0] * of_columns_IN2[..., 1]
            positions_IND = positions_IND + own_IND * share_IN[..., None]
        return positions_IND

    def _through(self, x_IND: Array, layers: slice, mask_INN: Array, rotation: rope.Rotation) -> Array:
        graphdef, stacked = nnx.split(self.layers)

        @jax.checkpoint
        def layer(x_IND: Array, weights: Any) -> tuple[Array, None]:
            return nnx.merge(graphdef, weights)(x_IND, mask_INN, rotation), None

        x_IND, _ = jax.lax.scan(layer, x_IND, jax.tree.map(lambda x: x[layers], stacked))
        return x_IND


def _below(part: str, specs: Weights) -> Weights:
    return {path[1:]: one for path, one in specs.items() if path[0] == part}


def _rotation(places_IN2: Array, head_dim: int) -> rope.Rotation:
    """Return the rotation of patches: half of a head's pairs turn by the row, the others by the column."""
    of_sides = [rope.rotation(ROPE, head_dim // 2, places_IN2[..., side]) for side in (0, 1)]
    return tuple(jnp.concatenate(parts, axis=-1) for parts in zip(*of_sides, strict=True))
