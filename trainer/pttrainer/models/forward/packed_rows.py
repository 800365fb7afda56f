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
from pttrainer.models.layers.attention import AttentionInputs
from pttrainer.models.layers.decoder import Decoder, DecoderLayer
from pttrainer.models.layers.linear import Drop
from pttrainer.models.layers.mixture.router import RouterUse, joined_use
from pttrainer.models.shapes.structure import ModelStructure, Params, Remat
from pttrainer.runtime.distributed import balanced_rows, explicit_collectives, sharding

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
Lent = dict[bool, packed_attention.Lent]
"""What later layers may borrow of the last local layer (True) and the last global one."""


class _Pass(NamedTuple):
    """What all layers of a pass share."""

    views: dict[ViewKind, View]
    segment_ids_BT: Array
    counts_BT: Array | None
    dropped: Callable[[Array], Drop] | None
    is_explicit: bool
    remat: Remat
    own_BTLP: Array | None
    has_lenders: bool
    embedded: images.Embedded | None = None
    routes_BTLk: Array | None = None
    chunk_ids_BT: Array | None = None
    is_balanced: bool = False


def hidden_states(
    model: ModelStructure,
    params: Params,
    rows: Rows,
    perturbations: Perturbations = UNPERTURBED,
    counts_BT: Array | None = None,
    prompts: Prompts | None = None,
    routes_BTLk: Array | None = None,
) -> tuple[Array, RouterUse | None]:
    """Return what the head reads [B, T, D], and the router's use per layer if tokens that count are given.

    prompts: shared prefixes; the result is then of the joined rows (`shared_prefix`). routes_BTLk: the experts of each
    token in place of the routers' choice (`Batch`).
    """
    decoder, dtype = modules.merged(model, params), model.compute_dtype
    is_plain = prompts is None and rows.images is None and perturbations == UNPERTURBED
    B, T = rows.tokens_BT.shape
    is_balanced = is_plain and packed_attention.can_be_balanced(model.config, B, T, dtype)
    if is_balanced:
        rows, counts_BT, routes_BTLk = jax.tree.map(balanced_rows.balanced, (rows, counts_BT, routes_BTLk))
    views = {kind: _view(of, kind, rows, prompts) for kind, of in layer_kinds.views(model.config).items()}
    tokens_BT = rows.tokens_BT if prompts is None else shared_prefix.joined(prompts.tokens_PT, rows.tokens_BT)
    is_explicit = explicit_collectives.are_used(*tokens_BT.shape)
    x_BTD, uses = embedding.embed(model, decoder, tokens_BT, perturbations.noisy, is_explicit=is_explicit), []
    embedded = None if rows.images is None else images.inserted(model, decoder, x_BTD, rows.images)
    x_BTD = x_BTD if embedded is None else embedded.x_BTD
    looked_up_BT = images.text_tokens(model.config, tokens_BT, rows.images)
    own_BTLP = embedding.for_layers(model, decoder, looked_up_BT, x_BTD, perturbations.dropped, is_explicit=is_explicit)
    of_pass = _Pass(
        views, rows.segment_ids_BT, counts_BT, perturbations.dropped, is_explicit, model.remat, own_BTLP,
        any(model.config.borrowing_layers + model.config.following_layers), embedded, routes_BTLk,
        packed_attention.chunk_ids(model.config, rows.segment_ids_BT, rows.positions_BT), is_balanced,
    )  # fmt: skip
    lent: Lent = {}
    for scan in model.config.scans:
        x_BTD, of_scan, lent = _through(model.config, scan, decoder, x_BTD, of_pass, lent)
        uses += of_scan
    hidden_BTD = embedding.for_head(model.config, decoder, x_BTD, perturbations.dropped)
    return balanced_rows.natural(hidden_BTD) if is_balanced else hidden_BTD, joined_use(uses)


def _view(config: ModelConfig, kind: ViewKind, rows: Rows, prompts: Prompts | None) -> View:
    is_local = kind[0]
    sections = images.sections(config, rows.images)
    if prompts is not None:
        positions = _joined_positions(config, rows, prompts)
        window = config.window if is_local else None
        prompt_PSS = _mask(config, prompts.segment_ids_PT, prompts.positions_PT, rows.images, is_local=is_local)
        masks = shared_prefix.masks(prompt_PSS, prompts, rows.positions_BT, rows.segment_ids_BT, window)
        return layer_kinds.rotation(kind, positions, sections), masks
    mask_BTT = _mask(config, rows.segment_ids_BT, rows.positions_BT, rows.images, is_local=is_local)
    positions = images.positions(config, rows.positions_BT, rows.segment_ids_BT, rows.images)
    return layer_kinds.rotation(kind, positions, sections), mask_BTT


def _joined_positions(config: ModelConfig, rows: Rows, prompts: Prompts) -> Array:
    """Return what tokens of prompts and of their rows turn by; images are of prompts."""
    of_prompts = images.positions(config, prompts.positions_PT, prompts.segment_ids_PT, rows.images)
    if of_prompts.ndim == 2:
        return shared_prefix.joined(of_prompts, rows.positions_BT)
    return jnp.stack([shared_prefix.joined(axis_PT, rows.positions_BT) for axis_PT in of_prompts])


def _mask(
    config: ModelConfig, segment_ids_BT: Array, positions_BT: Array, of_rows: Images | None, *, is_local: bool
) -> Array:
    """Return where tokens of packed rows see each other in one kind of layer."""
    window = config.window if is_local else None
    mask_BTT = images.visible(config, packed_mask(segment_ids_BT), of_rows, is_local=is_local)
    return mask_BTT if window is None else packed_window(mask_BTT, positions_BT, window)


def _through(
    config: ModelConfig, scan: Scan, decoder: Decoder, x_BTD: Array, of_pass: _Pass, lent: Lent
) -> tuple[Array, list[RouterUse], Lent]:
    """Pass the stream through the layers of a scan, whose body is a layer of each of its groups.

    Lent keys and values go from period to period only where layers make new ones.
    """
    layers: list[LayerFunction] = []
    stacks: list[Any] = []
    for group in scan:
        graphdef, weights = nnx.split(getattr(decoder, group.name))
        layers.append(_layer(group.config, graphdef, of_pass, is_alone=len(scan) == 1))
        flags_L, numbers_L = _flags_and_numbers(group, is_numbered=_is_numbered(of_pass))
        own_LBTP, routes_LBTk = _own_of(group, of_pass.own_BTLP), _routes_of(config, group, of_pass.routes_BTLk)
        stacks.append((weights, flags_L, numbers_L, own_LBTP, routes_LBTk))
    new = {group.config.is_local(0): _nothing(group.config, x_BTD) for group in scan if _lends(group.config, of_pass)}

    def period(carry: tuple[Array, Lent], of_period: list[Any]) -> tuple[tuple[Array, Lent], list[Any]]:
        (x_BTD, made), uses = carry, []
        for layer, group, of_layer in zip(layers, scan, of_period, strict=True):
            is_local = group.config.is_local(0)
            borrowed = {**lent, **made}[is_local] if group.config.borrows(0) or group.config.follows(0) else None
            x_BTD, (use, lends) = layer(x_BTD, (*of_layer, borrowed))
            uses.append(use)
            made = made if lends is None else {**made, is_local: lends}
        return (x_BTD, made), uses

    (x_BTD, made), uses = jax.lax.scan(period, (x_BTD, new), stacks)
    return x_BTD, [use for use in uses if use is not None], {**lent, **made}


def _is_numbered(of_pass: _Pass) -> bool:
    """Return True if layers differ in what they drop, or in what images add behind them."""
    return of_pass.dropped is not None or (of_pass.embedded is not None and of_pass.embedded.deep_KBTD is not None)


def _lends(config: ModelConfig, of_pass: _Pass) -> bool:
    return of_pass.has_lenders and not config.borrows(0) and not config.follows(0)


def _nothing(config: ModelConfig, x_BTD: Array) -> packed_attention.Lent:
    """Return what a scan begins with in place of what its layers make."""
    if config.latent is not None:
        return jnp.zeros((*x_BTD.shape[:2], x_BTD.shape[1]), bool)
    shape = (*x_BTD.shape[:2], config.kv_heads, config.head_dim)
    return jnp.zeros(shape, x_BTD.dtype), jnp.zeros(shape, x_BTD.dtype)


def _own_of(group: LayerGroup, own_BTLP: Array | None) -> Array | None:
    """Return the own embeddings of a group's layers [L, B, T, P], which a scan cuts."""
    numbers = group.numbers
    return None if own_BTLP is None else jnp.moveaxis(own_BTLP[:, :, numbers.start : numbers.stop : numbers.step], 2, 0)


def _routes_of(config: ModelConfig, group: LayerGroup, routes_BTLk: Array | None) -> Array | None:
    """Return the experts given to a group's layers [L, B, T, k], which a scan cuts."""
    if routes_BTLk is None or group.config.experts is None:
        return None
    places = [config.expert_layers.index(number) for number in group.numbers]
    return jnp.moveaxis(jnp.take(routes_BTLk, jnp.array(places), axis=2), 2, 0)


def _flags_and_numbers(group: LayerGroup, *, is_numbered: bool) -> tuple[Array | None, Array | None]:
    """Return which layers of a group are local, where both kinds are in it, and their numbers in the model."""
    flags_L = jnp.array(group.config.local_layers) if len(layer_kinds.kinds(group.config)) > 1 else None
    numbers = group.numbers
    return flags_L, jnp.arange(numbers.start, numbers.stop, numbers.step) if is_numbered else None


def _layer(config: ModelConfig, graphdef: Any, of_pass: _Pass, *, is_alone: bool) -> LayerFunction:
    """Return the body of a scan over the layers of a group."""
    kinds, vision = layer_kinds.kinds(config), None if of_pass.embedded is None else config.vision
    whole, *local = (of_pass.views[layer_kinds.view_kind(config, kind)] for kind in kinds)
    is_causal = vision is None or not any(vision.sees_both_ways(is_local=kind) for kind in kinds)

    def layer(
        x_BTD: Array, of_layer: tuple[Any, ...]
    ) -> tuple[Array, tuple[RouterUse | None, packed_attention.Lent | None]]:
        weights, is_local, number, own_BTP, given_BTk, borrowed = of_layer
        block: DecoderLayer = nnx.merge(graphdef, weights)
        if of_pass.is_explicit:
            block.write_out_collectives()
        drop = None if of_pass.dropped is None or number is None else of_pass.dropped(number)
        rotation, mask = whole if is_local is None else _select(is_local, local[0], whole)
        attend = packed_attention.attend(
            config, mask, is_local, of_pass.segment_ids_BT, is_causal=is_causal, borrowed=borrowed,
            lends=_lends(config, of_pass), chunk_ids_BT=of_pass.chunk_ids_BT, is_balanced=of_pass.is_balanced,
        )  # fmt: skip
        choosing = packed_attention.choosing(config, mask, of_pass.segment_ids_BT, lends=_lends(config, of_pass))
        x_BTD, lent, routing = block(
            x_BTD, AttentionInputs(rotation, attend, drop, choosing=choosing), of_pass.counts_BT, own_BTP, given_BTk
        )
        use = None if routing is None else routing.use
        if of_pass.embedded is not None and number is not None:
            x_BTD = of_pass.embedded.behind(number, x_BTD)
        return sharding.constrain(x_BTD, ("batch", "sequence", None)), (use, lent)

    return rematerialised(layer, of_pass.remat, is_alone=is_alone)


def _select(flag: Array, if_true: View, if_false: View) -> View:
    chosen: View = jax.tree.map(lambda a, b: jnp.where(flag, a, b), if_true, if_false)
    return chosen
