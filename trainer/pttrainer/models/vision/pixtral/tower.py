"""Pixtral's tower: patches of images of any size to the embeddings of their tokens, as Mistral 3 computes them.

    patches → norm → layers that see all patches of an image, with rotary positions of row and column
            → norm → squares of patches joined to tokens → two layers to the decoder's width

Patches come in the order of their tokens: those of a token follow each other. Letters: I images, N patches, X numbers
of a patch, D width, F feed-forward, H heads, E elements of a head, J tokens of an image, Q patches of a token, M width
of the decoder.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from pttrainer.data.tokenization.image_patches import PLACE
from pttrainer.models.attention.dot_product import Scoring, attend_packed
from pttrainer.models.attention.rope import rotate
from pttrainer.models.config import ModelConfig, Pixtral
from pttrainer.models.layers.gated_mlp import ACTIVATIONS
from pttrainer.models.layers.linear import weight, zeros
from pttrainer.models.lora.adapters import Adapters
from pttrainer.models.shapes.parameters import Weights
from pttrainer.models.vision import parameters
from pttrainer.models.vision.matrices import product, put_adapters
from pttrainer.models.vision.norm import ScaledNorm
from pttrainer.models.vision.pixtral import weights as names

NORM_EPS = 1e-5
"""Of the tower's norms; no config says it."""


class PixtralLayer(nnx.Module):
    """Attention over an image's patches and a gated MLP, each after a norm and added to the stream; stacked."""

    def __init__(self, of: Pixtral, specs: Weights, rngs: nnx.Rngs, adapters: Adapters | None) -> None:
        self.of = of
        for name in names.MATRICES:
            setattr(self, name, weight(rngs, specs[name,], specs[name,].shape[1] ** -0.5))
        put_adapters(self, names.MATRICES, adapters, ("layers",))
        self.attention_norm, self.mlp_norm = (ScaledNorm(specs[name, "scale"], NORM_EPS) for name in names.NORMS)

    def __call__(self, x_IND: Array, rotation: tuple[Array, Array], mask_INN: Array) -> Array:
        """Return the new stream."""
        x_IND = x_IND + self._attention(self.attention_norm(x_IND), rotation, mask_INN)
        normed_IND = self.mlp_norm(x_IND)
        gate_INF = ACTIVATIONS[self.of.activation](product(self, "gate", normed_IND))
        return x_IND + product(self, "down", gate_INF * product(self, "up", normed_IND))

    def _attention(self, x_IND: Array, rotation: tuple[Array, Array], mask_INN: Array) -> Array:
        shape = (*x_IND.shape[:2], self.of.heads, self.of.head_dim)
        q, k, v = (product(self, name, x_IND).reshape(shape) for name in ("q", "k", "v"))
        scoring = Scoring(self.of.head_dim**-0.5)
        out_INHE = attend_packed(rotate(q, *rotation), rotate(k, *rotation), v, mask_INN, scoring)
        return product(self, "o", out_INHE.reshape(x_IND.shape))


class PixtralTower(nnx.Module):
    """The tower and Mistral 3's projector."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, adapters: Adapters | None) -> None:
        assert isinstance(config.vision, Pixtral)
        self.of = of = config.vision
        specs: Weights = {path[1:]: one for path, one in parameters.tower(config).items()}
        self.patches = weight(rngs, specs["patches",], (of.channels * of.patch_size**2) ** -0.5)
        self.norm = ScaledNorm(specs["norm", "scale"], NORM_EPS)
        of_layers: Weights = {path[1:]: one for path, one in specs.items() if path[0] == "layers"}
        self.layers = PixtralLayer(of, of_layers, rngs, adapters)
        self.token_norm = ScaledNorm(specs["token_norm", "scale"], of.projector_eps)
        for name in names.PROJECTIONS:
            setattr(self, name, weight(rngs, specs[name,], specs[name,].shape[0] ** -0.5))
            bias = specs.get((f"{name}_bias",))
            setattr(self, f"{name}_bias", None if bias is None else zeros(bias))
        put_adapters(self, names.PROJECTIONS, adapters, ())

    def __call__(self, patches_INX: Array, dtype: str) -> list[Array]:
        """Return the embeddings [I, J, M] of patches (`image_patches`), and nothing for later layers."""
        matrix = self.patches[...].reshape(self.of.d_model, -1).T.astype(dtype)
        x_IND = self.norm(patches_INX[..., PLACE:].astype(dtype) @ matrix)
        rotation, is_patch_IN = _rotation(self.of, patches_INX[..., :PLACE] - 1), patches_INX[..., 0] > 0
        mask_INN = jnp.broadcast_to(is_patch_IN[:, None], (*is_patch_IN.shape, is_patch_IN.shape[1]))
        graphdef, stacked = nnx.split(self.layers)

        @jax.checkpoint
        def layer(x_IND: Array, weights: Any) -> tuple[Array, None]:
            return nnx.merge(graphdef, weights)(x_IND, rotation, mask_INN), None

        x_IND, _ = jax.lax.scan(layer, x_IND, stacked)
        return [self._projected(self.token_norm(x_IND))]

    def _projected(self, x_IND: Array) -> Array:
        """Return the tokens' embeddings. The numbers of a token's patches stand side by side, element by element."""
        images, N, D = x_IND.shape
        Q = self.of.merge**2
        joined = x_IND.reshape(images, N // Q, Q, D).swapaxes(2, 3).reshape(images, N // Q, D * Q)
        hidden_IJM = product(self, "inner", product(self, "merge", joined))
        return product(self, "outer", ACTIVATIONS[self.of.projector_activation](hidden_IJM))


def _rotation(of: Pixtral, places_IN2: Array) -> tuple[Array, Array]:
    """Return cosine and sine [I, N, E/2]: every second frequency turns with the row, the others with the column."""
    inverse = 1.0 / of.theta ** (jnp.arange(0, of.head_dim, 2, dtype=jnp.float32) / of.head_dim)
    of_sides = (places_IN2[..., 0:1] * inverse[0::2], places_IN2[..., 1:2] * inverse[1::2])
    angles = jnp.concatenate(of_sides, axis=-1)
    return jnp.cos(angles), jnp.sin(angles)
