"""The forward pass of packed rows, in training and scoring: embedding, a scan over the layers, the last norm.

Letters: B rows, T tokens, D model, L layers of a group.

Layers of one kind are stacked and are one body of `jax.lax.scan`, so compile time does not grow with depth; where kinds
take turns, the body is one period of them. Layers that differ only in what they see (local and global ones) are one
body too, which selects mask and rotation by a flag.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from pttrainer.batch import Images, Prompts
from pttrainer.models.attention import rope, shared_prefix
from pttrainer.models.attention.dot_product import packed_mask, packed_window
from pttrainer.models.config import LayerGroup, ModelConfig, Scan
from pttrainer.models.forward import embedding, images, layer_kinds, packed_attention
from pttrainer.models.forward.layer_kinds import ViewKind
from pttrainer.models.forward.remat import LayerFunction, rematerialised
from pttrainer.models.layers import decoder as modules
from pttrainer.models.layers.attention import Attention, AttentionInputs
from pttrainer.models.layers.decoder import Decoder, DecoderLayer
from pttrainer.models.layers.experts import RouterUse, joined_use
from pttrainer.models.layers.linear import Drop
from pttrainer.models.quantization import packed_matrix
from pttrainer.models.shapes.structure import ModelStructure, Params, Remat
from pttrainer.runtime.distributed import explicit_collectives, sharding

View = tuple[rope.Rotation, Array | shared_prefix.Masks]
"""Rotation and mask of one kind of layer."""


class Rows(NamedTuple):
    """Packed rows [B, T]. Segment ids separate the examples of a row (0 is padding); positions restart with each."""

    tokens_BT: Array
    positions_BT: Array
    segment_ids_BT: Array
    images: Images | None = None


class Perturbations(NamedTuple):
    """What training changes at random: noisy embeddings, and the inputs of a layer's adapters, by its number."""

    noisy: Callable[[Array], Array] | None = None
    dropped: Callable[[Array], Drop] | None = None


UNPERTURBED = Perturbations()


class _Pass(NamedTuple):
    """What all layers of a pass share."""

    views: dict[ViewKind, View]
    segment_ids_BT: Array
    counts_BT: Array | None
    dropped: Callable[[Array], Drop] | None
    is_explicit: bool
    remat: Remat
    has_images: bool = False


def hidden_states(
    model: ModelStructure,
    params: Params,
    rows: Rows,
    perturbations: Perturbations = UNPERTURBED,
    counts_BT: Array | None = None,
    prompts: Prompts | None = None,
) -> tuple[Array, RouterUse | None]:
    """Return what the head reads [B, T, D], and the router's use per layer if tokens that count are given.

    prompts: shared prefixes; the result is then of the joined rows (`shared_prefix`).
    """
    decoder = modules.merged(model, params)
    views = {kind: _view(of, kind, rows, prompts) for kind, of in layer_kinds.views(model.config).items()}
    tokens_BT = rows.tokens_BT if prompts is None else shared_prefix.joined(prompts.tokens_PT, rows.tokens_BT)
    is_explicit = explicit_collectives.are_used(tokens_BT.shape[0])
    has_images = rows.images is not None
    of_pass = _Pass(views, rows.segment_ids_BT, counts_BT, perturbations.dropped, is_explicit, model.remat, has_images)
    x_BTD, uses = embedding.embed(model, decoder, tokens_BT, perturbations.noisy, is_explicit=is_explicit), []
    if rows.images is not None:
        x_BTD = images.inserted(model, decoder, x_BTD, rows.images)
    for scan in model.config.scans:
        x_BTD, of_scan = _through(scan, decoder, x_BTD, of_pass)
        uses += of_scan
    return embedding.for_head(model.config, decoder, x_BTD, perturbations.dropped), joined_use(uses)


def _view(config: ModelConfig, kind: ViewKind, rows: Rows, prompts: Prompts | None) -> View:
    window = config.window if kind[0] else None
    if prompts is not None:
        positions = shared_prefix.joined(prompts.positions_PT, rows.positions_BT)
        rotation = layer_kinds.rotation(kind, positions)
        return rotation, shared_prefix.masks(prompts, rows.positions_BT, rows.segment_ids_BT, window)
    mask_BTT = packed_mask(rows.segment_ids_BT)
    if rows.images is not None:
        assert config.vision is not None
        mask_BTT = images.visible(mask_BTT, rows.images, config.vision.tokens)
    if window is not None:
        mask_BTT = packed_window(mask_BTT, rows.positions_BT, window)
    return layer_kinds.rotation(kind, rows.positions_BT), mask_BTT


def _through(scan: Scan, decoder: Decoder, x_BTD: Array, of_pass: _Pass) -> tuple[Array, list[RouterUse]]:
    """Pass the stream through the layers of a scan, whose body is a layer of each of its groups."""
    layers: list[LayerFunction] = []
    stacks: list[Any] = []
    for group in scan:
        graphdef, weights = nnx.split(getattr(decoder, group.name))
        layers.append(_layer(group.config, graphdef, of_pass))
        stacks.append((weights, *_flags_and_numbers(group, is_numbered=of_pass.dropped is not None)))

    def period(x_BTD: Array, of_period: list[Any]) -> tuple[Array, list[Any]]:
        uses = []
        for layer, of_layer in zip(layers, of_period, strict=True):
            x_BTD, use = layer(x_BTD, of_layer)
            uses.append(use)
        return x_BTD, uses

    x_BTD, uses = jax.lax.scan(period, x_BTD, stacks)
    return x_BTD, [use for use in uses if use is not None]


def _flags_and_numbers(group: LayerGroup, *, is_numbered: bool) -> tuple[Array | None, Array | None]:
    """Return which layers of a group are local, where both kinds are in it, and their numbers in the model."""
    flags_L = jnp.array(group.config.local_layers) if len(layer_kinds.kinds(group.config)) > 1 else None
    numbers = group.numbers
    return flags_L, jnp.arange(numbers.start, numbers.stop, numbers.step) if is_numbered else None


def _layer(config: ModelConfig, graphdef: Any, of_pass: _Pass) -> LayerFunction:
    """Return the body of a scan over the layers of a group."""
    whole, *local = (of_pass.views[layer_kinds.view_kind(config, kind)] for kind in layer_kinds.kinds(config))

    def layer(x_BTD: Array, of_layer: tuple[Any, Array | None, Array | None]) -> tuple[Array, RouterUse | None]:
        weights, is_local, number = of_layer
        block: DecoderLayer = nnx.merge(graphdef, weights)
        if of_pass.is_explicit:
            _write_out_collectives(config, block)
        drop = None if of_pass.dropped is None or number is None else of_pass.dropped(number)
        rotation, mask = whole if is_local is None else _select(is_local, local[0], whole)
        attend = packed_attention.attend(
            config, mask, is_local, of_pass.segment_ids_BT, is_causal=not of_pass.has_images
        )
        x_BTD, _, use = block(x_BTD, AttentionInputs(rotation, attend, drop), of_pass.counts_BT)
        return sharding.constrain(x_BTD, ("batch", "sequence", None)), use

    return rematerialised(layer, of_pass.remat)


def _write_out_collectives(config: ModelConfig, block: DecoderLayer) -> None:
    head_dim = config.head_dim if isinstance(block.attention, Attention) else None
    explicit_collectives.put_into(block.attention, packed_matrix.MATRICES["attention"], head_dim)
    if config.experts is None:
        explicit_collectives.put_into(block.mlp, packed_matrix.MATRICES["mlp"])


def _select(flag: Array, if_true: View, if_false: View) -> View:
    chosen: View = jax.tree.map(lambda a, b: jnp.where(flag, a, b), if_true, if_false)
    return chosen
