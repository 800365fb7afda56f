"""Embeddings per layer: a vector of each token for every layer, which the layer reads behind attention and MLP.

Letters: B rows, T tokens, D model, L layers, P size of a layer's vector.
"""

import jax.numpy as jnp
from flax import nnx
from jax import Array

from pttrainer.models.config import ModelConfig
from pttrainer.models.layers.gated_mlp import ACTIVATIONS
from pttrainer.models.layers.linear import Drop, product, put_matrix, weight
from pttrainer.models.layers.norm import RMSNorm
from pttrainer.models.lora.adapters import Adapters
from pttrainer.models.shapes import parameters


class LayerEmbeddings(nnx.Module):
    """A token's row of a second table, and a normed projection of its embedding: their sum over √2."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, adapters: Adapters | None = None) -> None:
        assert config.layer_embeddings is not None
        self.config, self.size = config, config.layer_embeddings.size
        of = parameters.layer_embeddings(config)
        self.table = weight(rngs, of["table",], 0.02)
        put_matrix(self, "context", of["context",], 1.0, rngs, adapters)
        self.norm = RMSNorm(of["norm", "scale"], config)

    def __call__(self, own_BTX: Array, x_BTD: Array, drop: Drop | None = None) -> Array:
        """Return every layer's vectors [B, T, L, P]. own_BTX: the tokens' rows of the table."""
        B, T, _ = x_BTD.shape
        scale = jnp.asarray(self.config.d_model**-0.5, x_BTD.dtype)
        context_BTLP = (product(self, "context", x_BTD, drop) * scale).reshape(B, T, self.config.layers, self.size)
        own_BTLP = own_BTX.reshape(context_BTLP.shape) * jnp.asarray(self.size**0.5, x_BTD.dtype)
        summed_BTLP: Array = (self.norm(context_BTLP) + own_BTLP) * jnp.asarray(0.5**0.5, x_BTD.dtype)
        return summed_BTLP


class LayerInput(nnx.Module):
    """A layer's step that reads its own vectors: norm((activation(x·gate) · vector)·out), added to the stream."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, adapters: Adapters | None = None) -> None:
        self.activation = config.activation
        for name, of in parameters.layer_input(config).items():
            put_matrix(self, name, of, of.shape[-2] ** -0.5, rngs, adapters)
        self.norm = RMSNorm(parameters.norm(config), config)

    def __call__(self, x_BTD: Array, own_BTP: Array, drop: Drop | None = None) -> Array:
        """Return what is added."""
        gate_BTP = ACTIVATIONS[self.activation](product(self, "input_gate", x_BTD, drop))
        added_BTD: Array = self.norm(product(self, "input_out", gate_BTP * own_BTP, drop))
        return added_BTD
