"""The one decoder: embedding, layers, final norm, as flax.nnx modules.

Letters: B rows, T tokens, V vocabulary, D model.

A layer is written once and used by training and decoding alike: what differs is only the `attend` function
it is given. Weights of all layers of a kind are created stacked (leading axis L), so that training scans over them and
compile time does not grow with depth. Every weight carries the logical names of its axes; `sharding` maps
those to the mesh. The output head is not applied here: `losses` and `rollout` do, in pieces, so that
B × T × V logits never exist.

Modules never cross a jit boundary: weights are an ordinary tree, and are merged with the modules' `skeleton` in each
call.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax import Array

from pttrainer.models.config import ModelConfig
from pttrainer.models.layers.attention import Attention, AttentionInputs
from pttrainer.models.layers.delta_attention import DeltaAttention
from pttrainer.models.layers.gated_mlp import GatedMLP
from pttrainer.models.layers.latent_attention import LatentAttention
from pttrainer.models.layers.layer_embeddings import LayerEmbeddings, LayerInput
from pttrainer.models.layers.linear import Drop, LowRank, weight
from pttrainer.models.layers.mixture.experts import SHARED, ExpertMLP
from pttrainer.models.layers.mixture.router import Routing
from pttrainer.models.layers.norm import RMSNorm
from pttrainer.models.lora.adapters import Adapters
from pttrainer.models.quantization import packed_matrix
from pttrainer.models.quantization import quantize as quant
from pttrainer.models.shapes import parameters
from pttrainer.models.shapes.structure import ModelStructure, Params
from pttrainer.models.vision.build import build
from pttrainer.runtime.distributed import explicit_collectives
from pttrainer.runtime.distributed.explicit_collectives import AS_TRAINED, Stored

EMBEDDING_STD = 0.02
"""Small, so that a fresh model's loss is close to ln V."""


class DecoderLayer(nnx.Module):
    """Attention and MLP, added to the stream: each after a norm, before one, or between two, by family."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, adapters: Adapters | None = None) -> None:

        def norm() -> RMSNorm:
            return RMSNorm(parameters.norm(config), config)

        self.attention_norm = norm() if config.pre_norms else None
        self.attention: Attention | LatentAttention | DeltaAttention
        if config.delta is not None:
            self.attention = DeltaAttention(config, rngs, adapters)
        else:
            self.attention = (Attention if config.latent is None else LatentAttention)(config, rngs, adapters)
        self.mlp_norm = norm() if config.pre_norms else None
        if config.experts is None:
            self.mlp: GatedMLP | ExpertMLP = GatedMLP(config, rngs, adapters)
        else:
            self.mlp = ExpertMLP(config, rngs, adapters)
        self.attention_post_norm = norm() if config.post_norms else None
        self.mlp_post_norm = norm() if config.post_norms else None
        has_input = config.layer_embeddings is not None
        self.layer_input = LayerInput(config, rngs, adapters) if has_input else None
        scalar = parameters.layer_scalar(config)
        self.scalar = nnx.Param(jnp.ones(scalar.shape), axes=scalar.axes) if config.layer_scalars else None

    def __call__(
        self,
        x_BTD: Array,
        inputs: AttentionInputs,
        counts_BT: Array | None = None,
        own_BTP: Array | None = None,
        given_BTk: Array | None = None,
    ) -> tuple[Array, Any, Routing | None]:
        """Return the new stream, the state that `attend` kept, and the tokens' experts, where the layer has experts.

        counts_BT: tokens that count for the router's use. own_BTP: the layer's own embeddings of the tokens, where it
        has some. given_BTk: experts to use in place of the router's choice.
        """
        attended_BTD, attended_state = self.attention(_normed(self.attention_norm, x_BTD), inputs)
        x_BTD = x_BTD + _normed(self.attention_post_norm, attended_BTD)
        added_BTD, routing = self._feed_forward(x_BTD, counts_BT, inputs.drop, given_BTk)
        x_BTD = x_BTD + _normed(self.mlp_post_norm, added_BTD)
        if self.layer_input is not None:
            assert own_BTP is not None
            x_BTD = x_BTD + self.layer_input(x_BTD, own_BTP, inputs.drop)
        if self.scalar is not None:
            x_BTD = x_BTD * self.scalar[...].astype(x_BTD.dtype)
        return x_BTD, attended_state, routing

    def write_out_collectives(self, stored: Stored = AS_TRAINED) -> None:
        """Replace the matrices by those that are gathered for each product (`explicit_collectives`)."""
        head_dim = self.attention.config.head_dim if isinstance(self.attention, Attention) else None
        explicit_collectives.put_into(self.attention, packed_matrix.MATRICES["attention"], head_dim, stored)
        of_mlp = packed_matrix.MATRICES["mlp"] if isinstance(self.mlp, GatedMLP) else SHARED
        explicit_collectives.put_into(self.mlp, of_mlp, stored=stored)
        if isinstance(self.mlp, ExpertMLP):
            self.mlp.is_split_as_trained = stored is AS_TRAINED
        if self.layer_input is not None:
            explicit_collectives.put_into(self.layer_input, packed_matrix.MATRICES["layer_input"], stored=stored)

    def _feed_forward(
        self, x_BTD: Array, counts_BT: Array | None, drop: Drop | None, given_BTk: Array | None
    ) -> tuple[Array, Routing | None]:
        normed_BTD = _normed(self.mlp_norm, x_BTD)
        if isinstance(self.mlp, ExpertMLP):
            return self.mlp(normed_BTD, counts_BT, x_BTD, given_BTk)
        return self.mlp(normed_BTD, drop), None


def _normed(norm: RMSNorm | None, x_BTD: Array) -> Array:
    return x_BTD if norm is None else norm(x_BTD)


class Decoder(nnx.Module):
    """All weights of a model.

    Layers of a group are stacked, under its name (`ModelConfig.groups`); the head is absent if it is tied to the
    embedding, and the vision tower if the model takes no images.
    """

    def __init__(
        self,
        config: ModelConfig,
        rngs: nnx.Rngs,
        adapters: Adapters | None = None,
        quantization: packed_matrix.Format | None = None,
    ) -> None:
        self.embedding = weight(rngs, parameters.table(config), EMBEDDING_STD)
        on_tables = adapters if adapters is not None and adapters.embeddings else None
        self.embedding_lora = None if on_tables is None else LowRank("embedding", self.embedding, on_tables)
        has_inputs = config.layer_embeddings is not None
        self.layer_embeddings = LayerEmbeddings(config, rngs, adapters) if has_inputs else None
        for group in config.groups:
            layers = DecoderLayer(group.config, rngs, adapters)
            if quantization is not None:
                quant.put_into(layers, quantization)
            setattr(self, group.name, layers)
        self.norm = RMSNorm(parameters.last_norm(config), config)
        if not config.tied_head:
            self.head = weight(rngs, parameters.table(config), EMBEDDING_STD)
            self.head_lora = None if on_tables is None else LowRank("head", self.head, on_tables)
        self.vision = build(config, rngs, adapters)


class Skeleton(NamedTuple):
    """The modules without weights, the weights' shapes and logical axes, and the modules of each group of layers."""

    decoder: Any
    shapes: Any
    layers: dict[str, Any]


@lru_cache
def skeleton(config: ModelConfig, adapters: Adapters | None, quantization: packed_matrix.Format | None) -> Skeleton:
    """Return the modules of a model without weights."""
    decoder = nnx.eval_shape(lambda: Decoder(config, nnx.Rngs(0), adapters, quantization))
    return Skeleton(
        *nnx.split(decoder), {group.name: nnx.split(getattr(decoder, group.name))[0] for group in config.groups}
    )


def skeleton_of(model: ModelStructure) -> Skeleton:
    """Return the skeleton of a model."""
    return skeleton(model.config, model.adapters, model.quantization)


def merged(model: ModelStructure, params: Params) -> Decoder:
    """Return the modules with these weights."""
    decoder: Decoder = nnx.merge(skeleton_of(model).decoder, params)
    return decoder
