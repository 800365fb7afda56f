"""Decoding: the forward pass of new tokens, which see the cache and each other.

Letters: B rows, T new tokens of a row, D model.

The cache is dense (slots, `attention.kv_cache`) or in pages (`attention.paged_kv_cache`). Weights are those of
`Model.for_decoding`: one tree per layer, because slicing a stack inside the token loop would copy every weight at every
token.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from pttrainer.batch import Images
from pttrainer.models.attention import (
    flash_kernels,
    gated_delta,
    paged_kernel,
    paged_kv_cache,
    rope,
    sparse_selection,
)
from pttrainer.models.attention import kv_cache as kv
from pttrainer.models.attention.dot_product import Slots, cached_mask, packed_window
from pttrainer.models.attention.paged_kv_cache import PagedCache
from pttrainer.models.attention.sparse_selection import Queries
from pttrainer.models.config import Chunk, Delta, ModelConfig
from pttrainer.models.decoding import decode_backend
from pttrainer.models.decoding.cache_devices import CacheDevices, keep_rows
from pttrainer.models.decoding.cut_matrix import FEW_TOKENS, CutMatrix, cut_matrices
from pttrainer.models.forward import embedding, images, layer_kinds
from pttrainer.models.layers import decoder as modules
from pttrainer.models.layers import latent_attention
from pttrainer.models.layers.attention import Attend, AttentionInputs
from pttrainer.models.layers.decoder import DecoderLayer
from pttrainer.models.layers.mixture.experts import ExpertMLP
from pttrainer.models.quantization import quantize as quant
from pttrainer.models.shapes.parameters import decoding_axes
from pttrainer.models.shapes.structure import ModelStructure, Params
from pttrainer.models.weights.hf_names import is_of_layer
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.explicit_collectives import Stored

Cache = TypeVar("Cache", bound=kv.KVCache | PagedCache)
Chosen = tuple[Queries, Array] | None
"""An indexer's queries, and its keys of the new tokens [B, T, E]."""


class Attends(Protocol):
    """Layer number, and what the layers before it have stored by now -> how it attends to a cache."""

    def __call__(self, i: int, stored_before: Sequence[Any], chosen: Chosen = None) -> Attend:
        """Return how the layer attends to what is chosen, or to all."""


def decode(
    model: ModelStructure,
    params: Params,
    tokens_BT: Array,
    positions_BT: Array,
    cache: Cache,
    of_images: Images | None = None,
    *,
    is_gathered: bool = False,
) -> tuple[Array, Cache, list[Array]]:
    """Return what the head reads [B, T, D] of new tokens, the new cache, and each layer's experts of them [B, T, k].

    As `Model.decode`.
    """
    config, layers_of = model.config, params["layers"]
    use_kernels = decode_backend.HEAD_BLOCKS in params
    params = {name: part for name, part in params.items() if name != decode_backend.HEAD_BLOCKS}
    any_layers = {group.name: layers_of[group.numbers[0]] for group in config.groups}
    decoder = modules.merged(model, without_layers(params) | any_layers)
    opened: kv.KVCache | PagedCache
    positions_BT = keep_rows(config, positions_BT, tokens_BT.shape[1])
    if isinstance(cache, PagedCache):
        assert of_images is None, "prompts are computed in a dense cache"
        opened, attends = _over_pages(config, positions_BT, cache)
    else:
        how = _Slots(use_kernels, "spread_batch" if is_gathered else "batch")
        opened, attends = _over_slots(config, positions_BT, cache, of_images, how)
    # Behind a barrier, or XLA computes sines and cosines again in every layer (for a CPU it does so all the same).
    kinds = list(layer_kinds.views(config))
    turning = images.positions(config, positions_BT, (positions_BT >= 0).astype(jnp.int32), of_images)
    sections = images.sections(config, of_images)
    computed = jax.lax.optimization_barrier([layer_kinds.rotation(kind, turning, sections) for kind in kinds])
    rotations = dict(zip(kinds, computed, strict=True))
    x_BTD = embedding.embed(model, decoder, tokens_BT, in_sampler=True)
    x_BTD = sharding.constrain(x_BTD, ("spread_batch", None, None)) if is_gathered else x_BTD
    x_BTD = keep_rows(config, x_BTD, tokens_BT.shape[1])
    embedded = None if of_images is None else images.inserted(model, decoder, x_BTD, of_images)
    x_BTD = x_BTD if embedded is None else embedded.x_BTD
    own_BTLP = embedding.for_layers(model, decoder, images.text_tokens(config, tokens_BT, of_images), x_BTD)
    layers: list[Any] = []
    routes: list[Array] = []
    for i, (group, place) in enumerate(config.layer_places):
        weights = layers_of[i] if model.quantization is None else _not_before(x_BTD, layers_of[i])
        weights, cut = _merged_and_cut(x_BTD, weights)
        block: DecoderLayer = nnx.merge(modules.skeleton_of(model).layers[group.name], weights)
        for name, matrix in cut.items():
            setattr(block.mlp, name, matrix)
        if isinstance(block.mlp, ExpertMLP):
            block.mlp.in_sampler = model.quantization is None
        if is_gathered:
            block.write_out_collectives(Stored("spread_batch", decoding_axes))
        rotation = rotations[layer_kinds.view_of(group.config, place)]
        own_BTP = None if own_BTLP is None else own_BTLP[:, :, i]
        x_BTD, layer, routing = block(x_BTD, _inputs(rotation, partial(attends, i, layers)), None, own_BTP)
        x_BTD = x_BTD if embedded is None else embedded.behind(i, x_BTD)
        layers.append(layer)
        if routing is not None:
            routes.append(routing.expert_BTk)
    return embedding.for_head(config, decoder, x_BTD, None), cast(Cache, opened._replace(layers=tuple(layers))), routes


def _merged_and_cut(x_BTD: Array, weights: Params) -> tuple[Params, dict[str, CutMatrix]]:
    """Return a layer's weights as its modules hold them, and the matrices in parts that its products are to read."""
    cut = cut_matrices(weights)
    if not cut:
        return weights, cut
    is_long = x_BTD.shape[1] >= FEW_TOKENS
    never = _never(x_BTD)
    held = {name: matrix.whole(never) if is_long else matrix.parts[0] for name, matrix in cut.items()}
    return {**weights, "mlp": {**weights["mlp"], **held}}, {} if is_long else cut


def _inputs(rotation: rope.Rotation, attend: Callable[..., Attend]) -> AttentionInputs:
    def choosing(queries: Queries, k_BTE: Array) -> Attend:
        return attend((queries, k_BTE))

    return AttentionInputs(rotation, attend(), is_cached=True, choosing=choosing)


def without_layers(params: Params) -> Params:
    """Return the weights outside the layers."""
    return {name: part for name, part in params.items() if not is_of_layer((name,))}


class _Slots(NamedTuple):
    """How slots are attended to. use_kernels: a CPU's. rows: the logical name of the rows."""

    use_kernels: bool
    rows: flash_kernels.Rows


def _over_slots(
    config: ModelConfig, positions_BT: Array, cache: kv.KVCache, of_images: Images | None, how: _Slots
) -> tuple[kv.KVCache, Attends]:
    """Return the cache with slots for new tokens, and how each layer attends to it."""
    cache, slot = kv.write_positions(cache, positions_BT), kv.slot_of_next(cache)
    cache = cache._replace(positions_BS=keep_rows(config, cache.positions_BS, positions_BT.shape[1]))
    masks = {
        kind: _cached_masks(config, positions_BT, cache, of_images, is_local=kind[0])
        for kind in layer_kinds.views(config)
    }
    choices: dict[int, tuple[Array, Array | None]] = {}

    def of_layer(i: int, stored_before: Sequence[Any], chosen: Chosen = None) -> Attend:
        group, place = config.layer_places[i]
        own_mask, prompt_mask = masks[layer_kinds.view_of(group.config, place)]
        if group.config.delta is not None:
            return partial(_remember, group.config.delta, cache.layers[i], positions_BT >= 0)
        rank, lender = None if group.config.latent is None else group.config.latent.rank, config.lender(i)

        def attend(
            q: Array, k: Array | None, v: Array | None, sinks_N: Array | None
        ) -> tuple[Array, kv.LayerKV | None]:
            devices = CacheDevices(group.config.cached[0] or group.config.kv_heads, *q.shape[:2])
            q = devices.placed(q, "heads")
            if chosen is not None and k is not None:
                q, k = _with_keys_of_indexer(q, k, chosen[1])
            if k is None or v is None:
                own = stored_before[lender]
            else:
                stored = cache.layers[i]
                assert isinstance(stored, kv.LayerKV)
                own = devices.cache(kv.write(stored, devices.placed(k, None), devices.placed(v, None), slot))
                if how.rows != "batch":
                    own = kv.LayerKV(*(sharding.constrain_fitting(x, ("batch", "kv_heads", None, None)) for x in own))
            of_prompt = None if cache.prompt is None else cache.prompt.layers[lender]
            read = own if rank is None else latent_attention.as_stored(own, rank)
            prompt, mask = None, own_mask
            if of_prompt is not None and prompt_mask is not None:
                prompt = (of_prompt if rank is None else latent_attention.as_stored(of_prompt, rank)), prompt_mask
            if chosen is not None:
                choices[i] = _chosen(group.config, chosen[0], (read, own_mask), prompt)
            if config.chooser(i) in choices:
                mask, of_prompt_mask = choices[config.chooser(i)]
                prompt = None if prompt is None or of_prompt_mask is None else (prompt[0], of_prompt_mask)
            scoring, kernels = layer_kinds.scoring(group.config, sinks_N), how.use_kernels and rank is None
            if k is not None and v is not None and of_images is None and _is_whole(config, cache, q, how.rows):
                window = group.config.window if group.config.is_local(place) else None
                assert not isinstance(window, Chunk), "`is_pageable`"
                segments_BT = (positions_BT >= 0).astype(jnp.int32)
                out = flash_kernels.attend("splash", q, k, v, segments_BT, window, scoring, rows=how.rows)
                return out, own
            out = devices.attend(q, (read, mask), prompt, scoring, use_kernels=kernels)
            return out, own if lender == i else None

        return attend

    return cache, of_layer


def _is_whole(config: ModelConfig, cache: kv.KVCache, q_BTNH: Array, rows: flash_kernels.Rows) -> bool:
    """Return True if tokens fill the cache, so see each other alone, and a TPU's kernel of training can attend."""
    T = q_BTNH.shape[1]
    if T == 1 or cache.positions_BS.shape[1] != T or cache.prompt is not None or cache.index.ndim:
        return False
    problem = flash_kernels.problem_of(q_BTNH, config.kv_heads, layer_kinds.scoring(config, None), rows)
    return config.is_pageable and flash_kernels.choose_kernel(problem) == "splash"


def _with_keys_of_indexer(q_BTNH: Array, k_BT1H: Array, k_BTE: Array) -> tuple[Array, Array]:
    """Return keys as a cache stores them, behind whose own elements are an indexer's; queries have zeros there."""
    q_BTNH = jnp.pad(q_BTNH, ((0, 0), (0, 0), (0, 0), (0, k_BTE.shape[-1])))
    return q_BTNH, jnp.concatenate([k_BT1H, k_BTE[:, :, None].astype(k_BT1H.dtype)], axis=-1)


def _chosen(config: ModelConfig, queries: Queries, own: Slots, prompt: Slots | None) -> tuple[Array, Array | None]:
    """Return the masks of a row's own slots and of its prompt's, where an indexer chooses what is seen of both."""
    assert config.latent is not None
    assert config.latent.indexer is not None
    first, keep = config.latent.rank + config.latent.rotary, config.latent.indexer.keep
    slots = [(layer.k_BKHS[:, 0, first:], mask) for layer, mask in ([own] if prompt is None else [own, prompt])]
    return sparse_selection.cached(queries, slots[0], slots[1] if prompt is not None else None, keep)


def _over_pages(config: ModelConfig, positions_BT: Array, cache: PagedCache) -> tuple[PagedCache, Attends]:
    """Do the same as `_over_slots` for pages."""
    table_BJ = paged_kv_cache.table(cache)

    def of_layer(i: int, stored_before: Sequence[Any], chosen: Chosen = None) -> Attend:
        assert chosen is None, "latents are read from the dense cache (`cache_layout`)"
        window = config.window if config.is_local(i) else None
        assert not isinstance(window, Chunk), "chunks are read from the dense cache (`cache_layout`)"

        def attend(q: Array, k: Array | None, v: Array | None, sinks_N: Array | None) -> tuple[Array, Array]:
            assert k is not None, "layers that borrow keys read the dense cache (`cache_layout`)"
            assert v is not None
            scoring = layer_kinds.scoring(config, sinks_N)
            return paged_kernel.attend((q, k, v), cache.layers[i], table_BJ, positions_BT, window, scoring)

        return attend

    return cache._replace(index=cache.index + positions_BT.shape[1]), of_layer


def _cached_masks(
    config: ModelConfig, positions_BT: Array, cache: kv.KVCache, of_images: Images | None, *, is_local: bool
) -> tuple[Array, Array | None]:
    """Return the masks of a row's own slots, and of its prompt's, in one kind of layer."""
    window = config.window if is_local else None
    if of_images is not None:
        assert cache.positions_BS.shape == positions_BT.shape, "a prompt with images is computed at once"
        mask = cached_mask(positions_BT, cache.positions_BS)
        mask = images.visible(config, mask, of_images, is_local=is_local)
        return mask if window is None else packed_window(mask, positions_BT, window), None
    own_mask = cached_mask(positions_BT, cache.positions_BS, window)
    if cache.prompt is None:
        return own_mask, None
    samples = positions_BT.shape[0] // cache.prompt.positions_PS.shape[0]
    return own_mask, cached_mask(positions_BT, jnp.repeat(cache.prompt.positions_PS, samples, axis=0), window)


def _remember(
    of: Delta, state: Any, is_token_BT: Array, mixed: Array, g: Array | None, beta: Array | None, conv: Array | None
) -> tuple[Array, gated_delta.DeltaState]:
    """Continue a row's state, as an `Attend`."""
    assert g is not None
    assert beta is not None
    assert conv is not None
    return gated_delta.cached(of, mixed, g, beta, conv, state, is_token_BT)


def _not_before(x_BTD: Array, weights: Params) -> Params:
    """Tie a layer's quantised weights to its input.

    Otherwise XLA dequantises all layers before the loop over tokens, and keeps them. (It drops an optimization barrier
    before it moves that code.)
    """
    never = _never(x_BTD).astype(jnp.int32)
    return quant.map_codes(weights, lambda codes: codes ^ never.astype(codes.dtype))


def _never(x_BTD: Array) -> Array:
    """Return False, by a comparison that ties what uses it to a layer's input."""
    return x_BTD[0, 0, 0] > jnp.inf
