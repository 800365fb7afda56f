"""The model as pure functions of an ordinary pytree of weights.

`Model` is hashable and holds no weights, so it may be closed over or passed as a static argument of jit.
Weights (`Params`) are nested dictionaries of arrays; the nnx modules of `decoder` are merged with them at
each call and never cross a jit boundary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from pttrainer.batch import Prompts
from pttrainer.models import decode_backend, parameters
from pttrainer.models.attention import (
    flash_kernels,
    gated_delta,
    latent,
    paged_kernel,
    paged_kv_cache,
    rope,
    shared_prefix,
)
from pttrainer.models.attention import kv_cache as kv
from pttrainer.models.attention.dot_product import (
    Scoring,
    attend_packed,
    cached_mask,
    packed_mask,
    packed_window,
)
from pttrainer.models.attention.paged_kv_cache import PagedCache
from pttrainer.models.config import Chunk, Delta, ModelConfig, Rope, Window
from pttrainer.models.decoder import Decoder, DecoderLayer
from pttrainer.models.layers import Attend, Attention, Drop, LowRank
from pttrainer.models.lora import adapters as lora
from pttrainer.models.lora import init_and_merge
from pttrainer.models.lora.adapters import Adapters
from pttrainer.models.moe.experts import balance_loss, joined_use
from pttrainer.models.quantization import packed_matrix
from pttrainer.models.quantization import quantize as quant
from pttrainer.models.structure import ModelStructure, Params, Remat
from pttrainer.models.weights.hf_names import is_of_layer
from pttrainer.runtime.distributed import explicit_collectives, sharding


@dataclass(frozen=True)
class Model(ModelStructure):
    """A model structure and how to compute it."""

    @classmethod
    def from_structure(cls, form: ModelStructure) -> Model:
        """Return the model of this structure."""
        return cls(**{each.name: getattr(form, each.name) for each in fields(ModelStructure)})

    def abstract(self) -> Params:
        """Return shapes and dtypes of all weights without allocating them."""
        shapes: Params = jax.eval_shape(self._stored, dict(nnx.to_pure_dict(self._structure[1])))
        return shapes

    def logical_axes(self) -> Params:
        """Return the tree of `abstract`, with the names of each weight's axes in its leaves."""
        is_variable = lambda x: isinstance(x, nnx.Variable)  # noqa: E731
        state = self._structure[1]
        axes = jax.tree.map(lambda v: v.get_metadata()["axes"], state, is_leaf=is_variable)
        return dict(nnx.to_pure_dict(axes))

    def init(self, key: Array) -> Params:
        """Draw random weights without adapters: normal, scaled by fan-in.

        Traceable; jit it with the weights' shardings.
        """
        return self.init_measured(key)[0]

    def init_measured(self, key: Array) -> tuple[Params, dict[str, quant.Squares]]:
        """Draw weights like `init`, and return the quantisation errors by name of matrix."""
        params = dict(nnx.to_pure_dict(nnx.state(Decoder(self.config, nnx.Rngs(key)))))
        if self.quantization is None:
            return self._stored(params), {}
        params, changed = quant.quantise_tree(params, self.quantization)
        return self._stored(params), changed

    def init_adapters(self, shardings: Params, seed: int) -> Params:
        """Return adapters that change nothing yet, on `shardings` (of adapters only)."""
        return init_and_merge.init(lora.only_adapters(self.abstract()), shardings, seed)

    @property
    def without_adapters(self) -> Model:
        """Return the base model of the adapters."""
        return replace(self, adapters=None)

    @property
    def unquantised(self) -> Model:
        """Return the model without quantisation."""
        return replace(self, quantization=None)

    def trained(self, tree: Params) -> Params:
        """Return the trained part of a tree shaped like the weights."""
        return tree if self.adapters is None else lora.only_adapters(tree)

    def frozen(self, tree: Params) -> Params | None:
        """Return the frozen part of a tree; None if everything is trained."""
        return None if self.adapters is None else lora.without_adapters(tree)

    def join_params(self, frozen: Params | None, trained: Params) -> Params:
        """Join both parts into one tree; nothing is copied."""
        return trained if frozen is None else lora.join(frozen, trained)

    def merged(self, params: Params) -> Params:
        """Return weights for `without_adapters.unquantised` that compute the same.

        Quantised matrices become a `quantize.Stack`: all of one at once may exceed the devices' memory.
        """
        if self.adapters is None:
            return params
        if self.quantization is None:
            return init_and_merge.merged(params, self.adapters.scale)
        whole = self.without_adapters.unquantised.abstract()
        return init_and_merge.merged_by_layer(params, whole, self.adapters.scale, self.quantization)

    def forward(
        self,
        params: Params,
        tokens_BT: Array,
        positions_BT: Array,
        segment_ids_BT: Array,
        noisy: Callable[[Array], Array] | None = None,
        dropped: Callable[[Array], Drop] | None = None,
        prompts: Prompts | None = None,
    ) -> Array:
        """Return the final hidden states [B, T, D] of packed rows, after the last norm, before the head.

        If the head has an adapter, its rank's activations follow the D, like its other part in `head`.

        Segment ids separate the examples of a row (0 is padding); positions restart with each example. noisy:
        changes embeddings in training; dropped: changes the input of a layer's adapters, by the layer's number.
        prompts: shared prefixes of the rows (`batch.Prompts`); they exclude the two others.
        """
        rows = tokens_BT, positions_BT, segment_ids_BT
        if prompts is None:
            return self._scan(params, *rows, None, noisy, dropped)[0]
        return shared_prefix.taken(self._scan(params, *rows, None, None, None, prompts)[0], prompts, tokens_BT.shape[0])

    def forward_balanced(
        self,
        params: Params,
        tokens_BT: Array,
        positions_BT: Array,
        segment_ids_BT: Array,
        noisy: Callable[[Array], Array] | None = None,
        dropped: Callable[[Array], Drop] | None = None,
    ) -> tuple[Array, Array]:
        """Compute `forward` and the load-balance loss of the experts (a scalar; padding does not count)."""
        assert self.config.experts is not None
        counts_BT = segment_ids_BT > 0
        hidden_BTD, use = self._scan(params, tokens_BT, positions_BT, segment_ids_BT, counts_BT, noisy, dropped)
        return hidden_BTD, balance_loss(use, self.config.experts)

    def logits(self, params: Params, hidden_BTD: Array) -> Array:
        """Return all logits [B, T, V], float32, with soft cap: for tests and comparisons with other implementations."""
        head_VD = self.head(params).astype(hidden_BTD.dtype)
        return self.capped(jnp.einsum("btd,vd->btv", hidden_BTD, head_VD, preferred_element_type=jnp.float32))

    def capped(self, logits: Array) -> Array:
        """Apply the model's soft cap to logits, if it has one (Gemma 2)."""
        cap = self.config.final_softcap
        return logits if cap is None else cap * jnp.tanh(logits / cap)

    def decode(self, params: Params, tokens_BT: Array, positions_BT: Array, cache: _Cache) -> tuple[Array, _Cache]:
        """Return the final hidden states [B, T, D] of new tokens and the new cache.

        New tokens see the cache and each other. `params` come from `for_decoding`. A token at position -1 is
        padding: it is stored as an empty slot, and its hidden state is meaningless. Serves prefill (T = prompt
        length) and steps (T = 1). A paged cache is read by the kernel of `paged_kernel`.
        """
        use_kernels = decode_backend.HEAD_BLOCKS in params
        params = {name: part for name, part in params.items() if name != decode_backend.HEAD_BLOCKS}
        layers_of = params["layers"]
        any_layers = {group.name: layers_of[group.numbers[0]] for group in self.config.groups}
        decoder = self._decoder(without_layers(params) | any_layers)
        opened: kv.KVCache | PagedCache
        if isinstance(cache, PagedCache):
            opened, attends = self._over_pages(positions_BT, cache)
        else:
            opened, attends = self._over_slots(positions_BT, cache, use_kernels=use_kernels)
        # Behind a barrier, or XLA computes sines and cosines again in every layer (for a CPU it does so all the same).
        views = _views(self.config)
        computed = jax.lax.optimization_barrier([_rotation(of, kind[0], positions_BT) for kind, of in views.items()])
        rotations = dict(zip(views, computed, strict=True))
        x_BTD = self._embed(decoder, tokens_BT)
        layers: list[Any] = []
        for i, (group, place) in enumerate(self.config.layer_places):
            block: DecoderLayer = nnx.merge(self._structure[2][group.name], self._not_before(x_BTD, layers_of[i]))
            x_BTD, layer, _ = block(x_BTD, rotations[_view_of(group.config, place)], attends(i), is_cached=True)
            layers.append(layer)
        return self._for_head(decoder, x_BTD, None), cast(_Cache, opened._replace(layers=tuple(layers)))

    def for_decoding(self, params: Params) -> Params:
        """Return weights for `decode`: in the compute dtype, one tree per layer instead of stacked.

        Slicing the stack inside the token loop would copy every weight at every token; do this once per
        rollout, outside the loop.
        """
        layers = tuple(self.layer_for_decoding(params[group.name], i) for group, i in self.config.layer_places)
        return {**self.part_for_decoding(without_layers(params)), "layers": layers}

    def layer_for_decoding(self, layers: Params, i: int | Array) -> Params:
        """Return one layer of a stack, for `decode`."""
        return self.part_for_decoding(jax.tree.map(lambda x: x[i], layers))

    def part_for_decoding(self, part: Params) -> Params:
        """Return weights outside the stacks, for `decode`."""
        return _cast(part, self.compute_dtype)

    def head(self, params: Params) -> Array:
        """Return the output head [V, D]: logits are hidden_BTD @ head_VD.T. Tied heads are the embedding.

        With an adapter, [V, D + rank]: one product of both, in which a small update is not rounded away as it
        would be in a sum of matrices in bfloat16.
        """
        name = "embedding" if self.config.tied_head else "head"
        head_VD: Array = params[name]
        adapter = params.get(f"{name}{lora.SUFFIX}")
        return head_VD if adapter is None else jnp.concatenate([head_VD, adapter["a"]], axis=1)

    def _for_head(self, decoder: Decoder, x_BTD: Array, dropped: Callable[[Array], Drop] | None) -> Array:
        """Return the stream in the form that `head` reads."""
        hidden_BTD: Array = decoder.norm(x_BTD)
        adapter = decoder.embedding_lora if self.config.tied_head else decoder.head_lora
        if adapter is None:
            return hidden_BTD
        read_BTD = hidden_BTD
        if dropped is not None:
            read_BTD = dropped(jnp.int32(self.config.layers))("head", hidden_BTD)
        b_RD = adapter.b[...].astype(hidden_BTD.dtype)
        low_BTR = (read_BTD @ b_RD.T) * jnp.asarray(adapter.scale, hidden_BTD.dtype)
        return jnp.concatenate([hidden_BTD, low_BTR], axis=-1)

    def _stored(self, params: Params) -> Params:
        """Cast to the format of the weights; adapters stay float32, because they and their updates are small."""
        return lora.join(_cast(lora.without_adapters(params), self.param_dtype), lora.only_adapters(params))

    @property
    def _structure(self) -> tuple[Any, Any, dict[str, Any]]:
        return _abstract(self.config, self.adapters, self.quantization)

    def _decoder(self, params: Params) -> Decoder:
        decoder: Decoder = nnx.merge(self._structure[0], params)
        return decoder

    def _not_before(self, x_BTD: Array, weights: Params) -> Params:
        """Tie a layer's quantised weights to its input.

        Otherwise XLA dequantises all layers before the loop over tokens, and keeps them. (It drops an
        optimization barrier before it moves that code.)
        """
        if self.quantization is None:
            return weights
        never = (x_BTD[0, 0, 0] > jnp.inf).astype(jnp.int32)
        return quant.map_codes(weights, lambda codes: codes ^ never.astype(codes.dtype))

    def _embed(
        self,
        decoder: Decoder,
        tokens_BT: Array,
        noisy: Callable[[Array], Array] | None = None,
        *,
        is_explicit: bool = False,
    ) -> Array:
        x_BTD = self._looked_up(decoder.embedding[...], tokens_BT, is_explicit=is_explicit)
        if decoder.embedding_lora is not None:
            x_BTD = x_BTD + self._embed_low(decoder.embedding_lora, tokens_BT)
        if noisy is not None:
            x_BTD = noisy(x_BTD)
        if self.config.embedding_scale is not None:
            x_BTD = x_BTD * jnp.asarray(self.config.embedding_scale, x_BTD.dtype)
        return sharding.constrain(x_BTD, ("batch", "sequence", None))

    def _looked_up(self, table_VD: Array, tokens_BT: Array, *, is_explicit: bool) -> Array:
        if is_explicit:
            return explicit_collectives.look_up(table_VD, tokens_BT, self.compute_dtype)
        # Gathered over `fsdp` before the look-up: looking up in slices of D would replicate the result instead.
        return sharding.constrain(table_VD.astype(self.compute_dtype), ("vocab", None))[tokens_BT]

    def _embed_low(self, adapter: LowRank, tokens_BT: Array) -> Array:
        a_VR = sharding.constrain(adapter.a[...].astype(self.compute_dtype), ("vocab", None))
        low_BTR = a_VR[tokens_BT] * jnp.asarray(adapter.scale, self.compute_dtype)
        return low_BTR @ adapter.b[...].astype(self.compute_dtype)

    def _scan(
        self,
        params: Params,
        tokens_BT: Array,
        positions_BT: Array,
        segment_ids_BT: Array,
        counts_BT: Array | None,
        noisy: Callable[[Array], Array] | None,
        dropped: Callable[[Array], Drop] | None,
        prompts: Prompts | None = None,
    ) -> tuple[Array, Any]:
        """Return final hidden states, and the router's use per layer if tokens that count are given."""
        decoder = self._decoder(params)
        views = {
            kind: self._view(of, kind[0], positions_BT, segment_ids_BT, prompts)
            for kind, of in _views(self.config).items()
        }
        if prompts is not None:
            tokens_BT = shared_prefix.joined(prompts.tokens_PT, tokens_BT)
        is_explicit = explicit_collectives.are_used(tokens_BT.shape[0])
        x_BTD, used = self._embed(decoder, tokens_BT, noisy, is_explicit=is_explicit), []
        for segment in self.config.segments:
            layers, weights = [], []
            for group in segment:
                graphdef, stacked = nnx.split(getattr(decoder, group.name))
                flags_L = jnp.array(group.config.local_layers) if len(_kinds(group.config)) > 1 else None
                numbers_L = None if dropped is None else jnp.arange(*_slice(group.numbers))
                layers.append(
                    self._layer(group.config, graphdef, views, segment_ids_BT, counts_BT, dropped, is_explicit)
                )
                weights.append((stacked, flags_L, numbers_L))

            def period(
                x_BTD: Array, of_period: list[Any], layers: list[_LayerFunction] = layers
            ) -> tuple[Array, list[Any]]:
                uses = []
                for layer, of_layer in zip(layers, of_period, strict=True):
                    x_BTD, use = layer(x_BTD, of_layer)
                    uses.append(use)
                return x_BTD, uses

            x_BTD, uses = jax.lax.scan(period, x_BTD, weights)
            used += [use for use in uses if use is not None]
        return self._for_head(decoder, x_BTD, dropped), joined_use(used)

    def _layer(
        self,
        config: ModelConfig,
        graphdef: Any,
        views: dict[_ViewKind, _PackedView],
        segment_ids_BT: Array,
        counts_BT: Array | None,
        dropped: Callable[[Array], Drop] | None,
        is_explicit: bool,
    ) -> _LayerFunction:
        """Return the body of a scan over the layers of a group.

        Layers that differ in what they see (local and global) are one scan: each selects its mask and rotation by
        a flag.
        """
        whole, *local = (views[_view_kind(config, kind)] for kind in _kinds(config))

        def layer(x_BTD: Array, of_layer: tuple[Any, Array | None, Array | None]) -> tuple[Array, Any]:
            weights, is_local, number = of_layer
            block: DecoderLayer = nnx.merge(graphdef, weights)
            if is_explicit:
                head_dim = config.head_dim if isinstance(block.attention, Attention) else None
                explicit_collectives.put_into(block.attention, packed_matrix.MATRICES["attention"], head_dim)
                if config.experts is None:
                    explicit_collectives.put_into(block.mlp, packed_matrix.MATRICES["mlp"])
            drop = None if dropped is None or number is None else dropped(number)
            rotation, mask = whole if is_local is None else _select(is_local, local[0], whole)

            def attend(q: Array, k: Array, v: Array, sinks_N: Array | None) -> tuple[Array, None]:
                if config.delta is not None:
                    assert sinks_N is not None
                    return gated_delta.packed(config.delta, q, k, v, sinks_N, segment_ids_BT), None
                scoring = _scoring(config, sinks_N)
                q, k, v = checkpoint_name((q, k, v), QKV)
                if isinstance(mask, shared_prefix.Masks):
                    return checkpoint_name(shared_prefix.attend_shared_prefix(q, k, v, mask, scoring), CONTEXT), None
                kernel = flash_kernels.choose_kernel(flash_kernels.problem_of(q, config.kv_heads, scoring))
                has_chunks = isinstance(config.window, Chunk) and q.shape[1] > config.window.size
                if kernel == "plain" or has_chunks:
                    out = attend_packed(q, _whole_row(k), _whole_row(v), mask, scoring)
                    return checkpoint_name(out, CONTEXT), None
                return _fused(config, kernel, is_local, (q, k, v, segment_ids_BT), scoring), None

            x_BTD, _, use = block(x_BTD, rotation, attend, counts_BT, drop)
            return sharding.constrain(x_BTD, ("batch", "sequence", None)), use

        return _rematerialised(layer, self.remat)

    def _view(
        self,
        config: ModelConfig,
        is_local: bool,
        positions_BT: Array,
        segment_ids_BT: Array,
        prompts: Prompts | None,
    ) -> _PackedView:
        if prompts is not None:
            window = config.window if is_local else None
            positions = shared_prefix.joined(prompts.positions_PT, positions_BT)
            return _rotation(config, is_local, positions), shared_prefix.masks(
                prompts, positions_BT, segment_ids_BT, window
            )
        mask_BTT = packed_mask(segment_ids_BT)
        if is_local and config.window is not None:
            mask_BTT = packed_window(mask_BTT, positions_BT, config.window)
        return _rotation(config, is_local, positions_BT), mask_BTT

    def _over_slots(self, positions_BT: Array, cache: kv.KVCache, *, use_kernels: bool) -> tuple[kv.KVCache, _Attends]:
        """Return the cache with slots for new tokens, and how each layer attends to it."""
        cache, slot = kv.write_positions(cache, positions_BT), kv.slot_of_next(cache)
        masks = {kind: self._cached_masks(kind[0], positions_BT, cache) for kind in _views(self.config)}

        def of_layer(i: int) -> Attend:
            group, place = self.config.layer_places[i]
            own_mask, prompt_mask = masks[_view_of(group.config, place)]
            if group.config.delta is not None:
                return partial(_remember, group.config.delta, cache.layers[i], positions_BT >= 0)
            rank = None if group.config.latent is None else group.config.latent.rank

            def attend(q: Array, k: Array, v: Array, sinks_N: Array | None) -> tuple[Array, kv.LayerKV]:
                stored = cache.layers[i]
                assert isinstance(stored, kv.LayerKV)
                own = kv.write(stored, k, v, slot)
                of_prompt = None if cache.prompt is None else cache.prompt.layers[i]
                read = own if rank is None else latent.as_stored(own, rank)
                prompt = None
                if of_prompt is not None and prompt_mask is not None:
                    prompt = (of_prompt if rank is None else latent.as_stored(of_prompt, rank)), prompt_mask
                scoring, kernels = _scoring(group.config, sinks_N), use_kernels and rank is None
                return decode_backend.attend(q, (read, own_mask), prompt, scoring, use_kernels=kernels), own

            return attend

        return cache, of_layer

    def _over_pages(self, positions_BT: Array, cache: PagedCache) -> tuple[PagedCache, _Attends]:
        """Do the same as `_over_slots` for pages."""
        table_BJ = paged_kv_cache.table(cache)

        def of_layer(i: int) -> Attend:
            window = self.config.window if self.config.is_local(i) else None
            assert not isinstance(window, Chunk), "chunks are read from the dense cache (`cache_layout`)"

            def attend(q: Array, k: Array, v: Array, sinks_N: Array | None) -> tuple[Array, Array]:
                scoring = _scoring(self.config, sinks_N)
                return paged_kernel.attend((q, k, v), cache.layers[i], table_BJ, positions_BT, window, scoring)

            return attend

        return cache._replace(index=cache.index + positions_BT.shape[1]), of_layer

    def _cached_masks(self, is_local: bool, positions_BT: Array, cache: kv.KVCache) -> tuple[Array, Array | None]:
        """Return the masks of a row's own slots, and of its prompt's."""
        window = self.config.window if is_local else None
        return cached_mask(positions_BT, cache.positions_BS, window), _prompt_mask(cache, positions_BT, window)


_PackedView = tuple[rope.Rotation, Array | shared_prefix.Masks]
"""Rotation and mask of one kind of layer."""

_ViewKind = tuple[bool, Rope, int]
"""What layers share that see the same: whether they are local, their rotary embedding, and its size."""

_Attends = Callable[[int], Attend]
"""Layer number -> how it attends to a cache."""

_Cache = TypeVar("_Cache", bound=kv.KVCache | PagedCache)


@lru_cache
def _abstract(
    config: ModelConfig, adapters: Adapters | None, quantization: packed_matrix.Format | None
) -> tuple[Any, Any, dict[str, Any]]:
    """Return the structure of the decoder, its weights' shapes, and the structure of each group of layers."""
    decoder = nnx.eval_shape(lambda: Decoder(config, nnx.Rngs(0), adapters, quantization))
    return (*nnx.split(decoder), {group.name: nnx.split(getattr(decoder, group.name))[0] for group in config.groups})


def _remember(
    of: Delta, state: Any, is_token_BT: Array, mixed: Array, g: Array, beta: Array, conv: Array | None
) -> tuple[Array, gated_delta.DeltaState]:
    """Continue a row's state, as an `Attend`."""
    assert conv is not None
    return gated_delta.cached(of, mixed, g, beta, conv, state, is_token_BT)


def without_layers(params: Params) -> Params:
    """Return the weights outside the layers."""
    return {name: part for name, part in params.items() if not is_of_layer((name,))}


def _kinds(config: ModelConfig) -> list[bool]:
    """Return whether layers are local, each kind once, global ones first."""
    return sorted({config.is_local(i) for i in range(config.layers)})


def _view_kind(config: ModelConfig, is_local: bool) -> _ViewKind:
    local = config.local_rope if is_local else None
    return is_local, local or config.rope, config.rotary_dim


def _view_of(config: ModelConfig, layer: int) -> _ViewKind:
    return _view_kind(config, config.is_local(layer))


def _views(config: ModelConfig) -> dict[_ViewKind, ModelConfig]:
    """Return what the layers see, each kind once, and the config of layers that see it."""
    pairs = [(_view_kind(group.config, kind), group.config) for group in config.groups for kind in _kinds(group.config)]
    return dict(sorted(pairs, key=lambda pair: pair[0][0]))


def _rotation(config: ModelConfig, is_local: bool, positions_BT: Array) -> rope.Rotation:
    _, of_kind, size = _view_kind(config, is_local)
    return rope.rotation(of_kind, size, positions_BT)


def _scoring(config: ModelConfig, sinks_N: Array | None) -> Scoring:
    return Scoring(config.scale, config.attention_softcap, sinks_N)


def _fused(
    config: ModelConfig,
    kernel: flash_kernels.Kernel,
    is_local: Array | None,
    inputs: tuple[Array, ...],
    scoring: Scoring,
) -> Array:
    """Attend by a kernel, whose window is part of its program: one program for each kind of layer."""

    def of_kind(local: bool) -> Callable[..., Array]:
        # Rows are no longer than a chunk, so it hides nothing.
        window = None if not local or isinstance(config.window, Chunk) else config.window
        return lambda q, k, v, segments: flash_kernels.attend(kernel, q, k, v, segments, window, scoring)

    if is_local is None:
        return of_kind(_kinds(config)[0])(*inputs)
    out: Array = jax.lax.cond(is_local, of_kind(True), of_kind(False), *inputs)
    return out


def _slice(numbers: range) -> tuple[int, int, int]:
    return numbers.start, numbers.stop, numbers.step


def _cast(params: Params, dtype: str) -> Params:
    """Cast weights to this number format; quantised ones and a router's correction keep theirs."""

    def one(path: Any, x: Any) -> Any:
        return x if quant.is_quantised(x) or path[-1].key == parameters.CORRECTION else x.astype(dtype)

    cast: Params = jax.tree_util.tree_map_with_path(one, params, is_leaf=quant.is_quantised)
    return cast


_LayerFunction = Callable[[Array, Any], tuple[Array, Any]]

QKV, CONTEXT = "qkv", "context"
"""Names of queries, keys and values as attention reads them, and of the output of attention without a kernel."""

SAVED: dict[Remat, list[str]] = {
    "save-context": [CONTEXT, flash_kernels.KERNEL_OUT],
    "save-qkv-context": [QKV, CONTEXT, flash_kernels.KERNEL_OUT],
}


def _rematerialised(layer: _LayerFunction, remat: Remat) -> _LayerFunction:
    """Apply rematerialisation.

    `full` keeps a layer's input only, the policies of `SAVED` the arrays of these names too. `none` keeps the results
    of its weights' products and of attention's kernel, and recomputes everything else: writing and reading those
    arrays costs more than computing them again (36% of a step on CPU).
    """
    policies = jax.checkpoint_policies
    policy = None if remat == "full" else policies.save_only_these_names(*SAVED.get(remat, [flash_kernels.KERNEL_OUT]))
    if policy is not None and remat == "none":
        policy = policies.save_from_both_policies(policies.dots_with_no_batch_dims_saveable, policy)
    return jax.checkpoint(layer, prevent_cse=False, policy=policy)


def _whole_row(x_BTKH: Array) -> Array:
    """Gather keys or values of all tokens if `sequence` splits them: each device attends with its own queries.

    They are the smallest part of attention (K heads, not N), so one gather is cheaper than a ring.
    """
    if not sharding.is_split("sequence"):
        return x_BTKH
    return sharding.constrain(x_BTKH, ("batch", None, "kv_heads", None))


def _select(flag: Array, if_true: Any, if_false: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(flag, a, b), if_true, if_false)


def _prompt_mask(cache: kv.KVCache, positions_BT: Array, window: Window) -> Array | None:
    if cache.prompt is None:
        return None
    samples = positions_BT.shape[0] // cache.prompt.positions_PS.shape[0]
    return cached_mask(positions_BT, jnp.repeat(cache.prompt.positions_PS, samples, axis=0), window)
