"""Llama 4's tower: the tiles of images to the embeddings of their tokens.

    patches and one class token + learned positions → norm → layers that see all patches of a tile, with rotary
            positions of column and row → norm → squares of patches joined to tokens → two layers → projection

A tile is seen by itself; the class token is left behind. Letters: I images, T tiles of an image, Z tiles of all,
S pixels of a side, C channels, P pixels of a patch's side, N patches of a tile, D width, E elements of a head, J tokens
of an image, A width of the adapter, M width of the decoder.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from pttrainer.models.attention.rope import Rotation
from pttrainer.models.config import Llama4Vision, ModelConfig
from pttrainer.models.layers.gated_mlp import ACTIVATIONS
from pttrainer.models.layers.linear import weight
from pttrainer.models.lora.adapters import Adapters
from pttrainer.models.shapes.parameters import Weights
from pttrainer.models.vision import parameters
from pttrainer.models.vision.llama4 import weights as names
from pttrainer.models.vision.matrices import product, put_adapters
from pttrainer.models.vision.tower import LayerNorm, VisionLayer


class Llama4Tower(nnx.Module):
    """The tower, its adapter, which makes tokens of patches, and the projection to the decoder's width."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, adapters: Adapters | None) -> None:
        assert isinstance(config.vision, Llama4Vision)
        self.of = of = config.vision
        specs: Weights = {path[1:]: one for path, one in parameters.tower(config).items()}
        self.patches = weight(rngs, specs["patches",], specs["patches",].shape[0] ** -0.5)
        self.class_token = weight(rngs, specs["class_token",], of.d_model**-0.5)
        self.positions = weight(rngs, specs["positions",], of.d_model**-0.5)
        of_layers: Weights = {path[1:]: one for path, one in specs.items() if path[0] == "layers"}
        self.layers = VisionLayer(of, of_layers, rngs, adapters, has_interleaved_pairs=True)
        self.norm, self.last_norm = (
            LayerNorm(specs[name, "scale"], specs[name, "bias"], of.norm_eps) for name in names.NORMS
        )
        for name in names.PROJECTIONS:
            setattr(self, name, weight(rngs, specs[name,], specs[name,].shape[0] ** -0.5))
        put_adapters(self, names.PROJECTIONS, adapters, ())

    def __call__(self, pixels_ITSSC: Array, dtype: str) -> list[Array]:
        """Return the embeddings [I, J, M] of normalised tiles, and nothing for later layers."""
        x_ZND = self._embedded(pixels_ITSSC.reshape(-1, *pixels_ITSSC.shape[2:]).astype(dtype))
        rotation = _rotation(self.of, len(x_ZND))
        graphdef, stacked = nnx.split(self.layers)

        @jax.checkpoint
        def layer(x_ZND: Array, weights: Any) -> tuple[Array, None]:
            return nnx.merge(graphdef, weights)(x_ZND, rotation=rotation), None

        x_ZND, _ = jax.lax.scan(layer, self.norm(x_ZND), stacked)
        embeddings = product(self, "projection", self._adapted(self.last_norm(x_ZND)[:, :-1]))
        return [embeddings.reshape(len(pixels_ITSSC), -1, embeddings.shape[-1])]

    def _embedded(self, pixels_ZSSC: Array) -> Array:
        """Return the embeddings of patches, whose pixels stand channel by channel, and the class token behind them."""
        n, P, C = self.of.patches_per_side, self.of.patch_size, self.of.channels
        cut = pixels_ZSSC.reshape(-1, n, P, n, P, C).transpose(0, 1, 3, 5, 2, 4).reshape(-1, n * n, C * P * P)
        of_class = jnp.broadcast_to(self.class_token[...].astype(cut.dtype), (len(cut), 1, self.of.d_model))
        embedded: Array = jnp.concatenate([product(self, "patches", cut), of_class], axis=1)
        return embedded + self.positions[...].astype(cut.dtype)

    def _adapted(self, x_ZND: Array) -> Array:
        """Return the tokens [Z, tokens of a tile, A]: the patches of a square stand side by side, row by row."""
        m, side, D = self.of.merge, self.of.patches_per_side // self.of.merge, self.of.d_model
        squares = x_ZND.reshape(-1, side, m, side, m, D).transpose(0, 1, 3, 2, 4, 5).reshape(-1, side * side, m * m * D)
        activation = ACTIVATIONS[self.of.activation]
        return activation(product(self, "inner", activation(product(self, "merge", squares))))


def _rotation(of: Llama4Vision, tiles: int) -> Rotation:
    """Return cosine and sine [Z, N + 1, E/2]: a head's first pairs turn by the column, the others by the row.

    Both are counted from 1; the class token does not turn.
    """
    half, n = of.d_model // of.heads // 2, of.patches_per_side
    inverse = 1.0 / of.theta ** (jnp.arange(0, half, 2, dtype=jnp.float32) / half)
    row_N, column_N = jnp.divmod(jnp.arange(n * n), n)
    angles = jnp.concatenate([(place_N[:, None] + 1) * inverse for place_N in (column_N, row_N)], axis=-1)
    angles = jnp.broadcast_to(jnp.pad(angles, ((0, 1), (0, 0))), (tiles, n * n + 1, half))
    return jnp.cos(angles), jnp.sin(angles)
