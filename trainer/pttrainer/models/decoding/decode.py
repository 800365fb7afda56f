"""Decoding: the forward pass of new tokens, which see the cache and each other.

Letters: B rows, T new tokens of a row, D model.

The cache is dense (slots, `attention.kv_cache`) or in pages (`attention.paged_kv_cache`). Weights are those of
`Model.for_decoding`: one tree per layer, because slicing a stack inside the token loop would copy every weight at every
token.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from pttrainer.batch import Images
from pttrainer.models.attention import gated_delta, paged_kernel, paged_kv_cache
from pttrainer.models.attention import kv_cache as kv
from pttrainer.models.attention.dot_product import cached_mask, packed_window
from pttrainer.models.attention.paged_kv_cache import PagedCache
from pttrainer.models.config import Chunk, Delta, ModelConfig, Window
from pttrainer.models.decoding import decode_backend
from pttrainer.models.forward import embedding, images, layer_kinds
from pttrainer.models.layers import decoder as modules
from pttrainer.models.layers import latent_attention
from pttrainer.models.layers.attention import Attend, AttentionInputs
from pttrainer.models.layers.decoder import DecoderLayer
from pttrainer.models.quantization import quantize as quant
from pttrainer.models.shapes.structure import ModelStructure, Params
from pttrainer.models.weights.hf_names import is_of_layer

Cache = TypeVar("Cache", bound=kv.KVCache | PagedCache)
Attends = Callable[[int], Attend]
"""Layer number -> how it attends to a cache."""


def decode(
    model: ModelStructure,
    params: Params,
    tokens_BT: Array,
    positions_BT: Array,
    cache: Cache,
    of_images: Images | None = None,
) -> tuple[Array, Cache]:
    """Return what the head reads [B, T, D] of new tokens, and the new cache (`Model.decode`)."""
    config, layers_of = model.config, params["layers"]
    use_kernels = decode_backend.HEAD_BLOCKS in params
    params = {name: part for name, part in params.items() if name != decode_backend.HEAD_BLOCKS}
    any_layers = {group.name: layers_of[group.numbers[0]] for group in config.groups}
    decoder = modules.merged(model, without_layers(params) | any_layers)
    opened: kv.KVCache | PagedCache
    if isinstance(cache, PagedCache):
        assert of_images is None, "prompts are computed in a dense cache"
        opened, attends = _over_pages(config, positions_BT, cache)
    else:
        opened, attends = _over_slots(config, positions_BT, cache, of_images, use_kernels=use_kernels)
    # Behind a barrier, or XLA computes sines and cosines again in every layer (for a CPU it does so all the same).
    kinds = list(layer_kinds.views(config))
    computed = jax.lax.optimization_barrier([layer_kinds.rotation(kind, positions_BT) for kind in kinds])
    rotations = dict(zip(kinds, computed, strict=True))
    x_BTD = embedding.embed(model, decoder, tokens_BT)
    if of_images is not None:
        x_BTD = images.inserted(model, decoder, x_BTD, of_images)
    layers: list[Any] = []
    for i, (group, place) in enumerate(config.layer_places):
        weights = layers_of[i] if model.quantization is None else _not_before(x_BTD, layers_of[i])
        block: DecoderLayer = nnx.merge(modules.skeleton_of(model).layers[group.name], weights)
        rotation = rotations[layer_kinds.view_of(group.config, place)]
        x_BTD, layer, _ = block(x_BTD, AttentionInputs(rotation, attends(i), is_cached=True))
        layers.append(layer)
    return embedding.for_head(config, decoder, x_BTD, None), cast(Cache, opened._replace(layers=tuple(layers)))


def without_layers(params: Params) -> Params:
    """Return the weights outside the layers."""
    return {name: part for name, part in params.items() if not is_of_layer((name,))}


def _over_slots(
    config: ModelConfig, positions_BT: Array, cache: kv.KVCache, of_images: Images | None, *, use_kernels: bool
) -> tuple[kv.KVCache, Attends]:
    """Return the cache with slots for new tokens, and how each layer attends to it."""
    cache, slot = kv.write_positions(cache, positions_BT), kv.slot_of_next(cache)
    masks = {
        kind: _cached_masks(config, config.window if kind[0] else None, positions_BT, cache, of_images)
        for kind in layer_kinds.views(config)
    }

    def of_layer(i: int) -> Attend:
        group, place = config.layer_places[i]
        own_mask, prompt_mask = masks[layer_kinds.view_of(group.config, place)]
        if group.config.delta is not None:
            return partial(_remember, group.config.delta, cache.layers[i], positions_BT >= 0)
        rank = None if group.config.latent is None else group.config.latent.rank

        def attend(q: Array, k: Array, v: Array, sinks_N: Array | None) -> tuple[Array, kv.LayerKV]:
            stored = cache.layers[i]
            assert isinstance(stored, kv.LayerKV)
            own = kv.write(stored, k, v, slot)
            of_prompt = None if cache.prompt is None else cache.prompt.layers[i]
            read = own if rank is None else latent_attention.as_stored(own, rank)
            prompt = None
            if of_prompt is not None and prompt_mask is not None:
                prompt = (of_prompt if rank is None else latent_attention.as_stored(of_prompt, rank)), prompt_mask
            scoring, kernels = layer_kinds.scoring(group.config, sinks_N), use_kernels and rank is None
            return decode_backend.attend(q, (read, own_mask), prompt, scoring, use_kernels=kernels), own

        return attend

    return cache, of_layer


def _over_pages(config: ModelConfig, positions_BT: Array, cache: PagedCache) -> tuple[PagedCache, Attends]:
    """Do the same as `_over_slots` for pages."""
    table_BJ = paged_kv_cache.table(cache)

    def of_layer(i: int) -> Attend:
        window = config.window if config.is_local(i) else None
        assert not isinstance(window, Chunk), "chunks are read from the dense cache (`cache_layout`)"

        def attend(q: Array, k: Array, v: Array, sinks_N: Array | None) -> tuple[Array, Array]:
            scoring = layer_kinds.scoring(config, sinks_N)
            return paged_kernel.attend((q, k, v), cache.layers[i], table_BJ, positions_BT, window, scoring)

        return attend

    return cache._replace(index=cache.index + positions_BT.shape[1]), of_layer


def _cached_masks(
    config: ModelConfig, window: Window, positions_BT: Array, cache: kv.KVCache, of_images: Images | None
) -> tuple[Array, Array | None]:
    """Return the masks of a row's own slots, and of its prompt's."""
    if of_images is not None:
        assert config.vision is not None
        assert cache.positions_BS.shape == positions_BT.shape, "a prompt with images is computed at once"
        mask = cached_mask(positions_BT, cache.positions_BS)
        mask = images.visible(mask, of_images, config.vision.tokens)
        return mask if window is None else packed_window(mask, positions_BT, window), None
    own_mask = cached_mask(positions_BT, cache.positions_BS, window)
    if cache.prompt is None:
        return own_mask, None
    samples = positions_BT.shape[0] // cache.prompt.positions_PS.shape[0]
    return own_mask, cached_mask(positions_BT, jnp.repeat(cache.prompt.positions_PS, samples, axis=0), window)


def _remember(
    of: Delta, state: Any, is_token_BT: Array, mixed: Array, g: Array, beta: Array, conv: Array | None
) -> tuple[Array, gated_delta.DeltaState]:
    """Continue a row's state, as an `Attend`."""
    assert conv is not None
    return gated_delta.cached(of, mixed, g, beta, conv, state, is_token_BT)


def _not_before(x_BTD: Array, weights: Params) -> Params:
    """Tie a layer's quantised weights to its input.

    Otherwise XLA dequantises all layers before the loop over tokens, and keeps them. (It drops an optimization barrier
    before it moves that code.)
    """
    never = (x_BTD[0, 0, 0] > jnp.inf).astype(jnp.int32)
    return quant.map_codes(weights, lambda codes: codes ^ never.astype(codes.dtype))
