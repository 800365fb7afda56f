"""The model as pure functions of an ordinary pytree of weights.

`Model` is hashable and holds no weights, so it may be closed over or passed as a static argument of jit.
Weights (`Params`) are nested dictionaries of arrays; the nnx modules of `decoder` are merged with them at
each call and never cross a jit boundary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from pttrainer import sharding
from pttrainer.models import cache as kv
from pttrainer.models import rope
from pttrainer.models.attention import attend_cached, attend_packed, attend_shared, cached_mask, packed_mask
from pttrainer.models.config import ModelConfig
from pttrainer.models.decoder import Decoder, DecoderLayer

Params = dict[str, Any]
Remat = Literal["none", "full"]


@dataclass(frozen=True)
class Model:
    """A config and how to compute it: number formats, recomputation in the backward pass."""

    config: ModelConfig
    compute_dtype: str = "float32"
    param_dtype: str = "float32"
    remat: Remat = "none"

    def abstract(self) -> Params:
        """Shapes and dtypes of all weights, nothing allocated."""
        return jax.eval_shape(self._stored, dict(nnx.to_pure_dict(_abstract_state(self.config))))

    def logical_axes(self) -> Params:
        """The tree of `abstract`, with the names of each weight's axes in its leaves."""
        is_variable = lambda x: isinstance(x, nnx.Variable)  # noqa: E731
        axes = jax.tree.map(lambda v: v.get_metadata()["axes"], _abstract_state(self.config), is_leaf=is_variable)
        return dict(nnx.to_pure_dict(axes))

    def init(self, key: Array) -> Params:
        """Random weights: normal, scaled by fan-in. Traceable; jit it with the shardings of the weights."""
        return self._stored(dict(nnx.to_pure_dict(nnx.state(Decoder(self.config, nnx.Rngs(key))))))

    def forward(self, params: Params, tokens_BT: Array, positions_BT: Array, segment_ids_BT: Array) -> Array:
        """Final hidden states [B, T, D] of packed rows, after the last norm; the head is not applied.

        Segment ids tell the examples of a row apart (0 is padding); positions restart with each example.
        """
        decoder = _merge(self.config, params)
        rotation = rope.rotation(self.config, positions_BT)
        mask_BTT = packed_mask(segment_ids_BT)
        graphdef, stacked = nnx.split(decoder.layers)

        def layer(x_BTD: Array, weights: Any) -> tuple[Array, None]:
            block: DecoderLayer = nnx.merge(graphdef, weights)
            x_BTD, _ = block(x_BTD, rotation, lambda q, k, v: (attend_packed(q, k, v, mask_BTT), None))
            return sharding.constrain(x_BTD, ("batch", "sequence", None)), None

        x_BTD = self._embed(decoder, tokens_BT)
        x_BTD, _ = jax.lax.scan(_rematerialised(layer, self.remat), x_BTD, stacked)
        return decoder.norm(x_BTD)

    def decode(self, params: Params, tokens_BT: Array, positions_BT: Array, cache: kv.KVCache) -> tuple[Array, kv.KVCache]:
        """Final hidden states [B, T, D] of new tokens that see the cache and each other, and the new cache.

        `params` come from `for_decoding`. A token whose position is -1 is padding: it is stored as an empty
        slot, and its hidden state means nothing. Serves prefill (T = prompt length) and steps (T = 1).
        """
        blocks = [_merge(self.config, {**params, "layers": weights}) for weights in params["layers"]]
        decoder = blocks[0]
        cache, index = kv.write_positions(cache, positions_BT), cache.index
        rotation = rope.rotation(self.config, positions_BT)
        own_mask = cached_mask(positions_BT, cache.positions_BS)
        prompt_mask = _prompt_mask(cache, positions_BT)
        x_BTD = self._embed(decoder, tokens_BT)
        layers: list[kv.LayerKV] = []
        for i, block in enumerate(blocks):
            x_BTD, layer = block.layers(x_BTD, rotation, _attend_with(cache, i, index, own_mask, prompt_mask))
            layers.append(layer)
        return decoder.norm(x_BTD), cache._replace(layers=tuple(layers))

    def for_decoding(self, params: Params) -> Params:
        """Weights as `decode` wants them: in the compute dtype, one tree per layer instead of stacked.

        Slicing the stack inside the token loop would copy every weight at every token; do this once per
        rollout, outside the loop.
        """
        cast = jax.tree.map(lambda x: x.astype(self.compute_dtype), params)
        layers = tuple(jax.tree.map(lambda x, i=i: x[i], cast["layers"]) for i in range(self.config.layers))
        return {**cast, "layers": layers}

    def head(self, params: Params) -> Array:
        """The output head [V, D]: logits are hidden_BTD @ head_VD.T. Tied heads are the embedding."""
        return params["embedding"] if self.config.tied_head else params["head"]

    def _stored(self, params: Params) -> Params:
        stored: Params = jax.tree.map(lambda x: x.astype(self.param_dtype), params)
        return stored

    def _embed(self, decoder: Decoder, tokens_BT: Array) -> Array:
        x_BTD = decoder.embedding[...].astype(self.compute_dtype)[tokens_BT]
        return sharding.constrain(x_BTD, ("batch", "sequence", None))


@lru_cache
def _abstract(config: ModelConfig) -> tuple[Any, Any]:
    return nnx.split(nnx.eval_shape(lambda: Decoder(config, nnx.Rngs(0))))


def _abstract_state(config: ModelConfig) -> Any:
    return _abstract(config)[1]


def _merge(config: ModelConfig, params: Params) -> Decoder:
    return nnx.merge(_abstract(config)[0], params)


_LayerFunction = Callable[[Array, Any], tuple[Array, None]]


def _rematerialised(layer: _LayerFunction, remat: Remat) -> _LayerFunction:
    """`full` keeps a layer's input only. `none` keeps the results of its weights' products and repeats what lies
    between them: writing and reading those arrays costs more than computing them again (36% of a step on CPU)."""
    kept = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if remat == "none" else None
    return jax.checkpoint(layer, prevent_cse=False, policy=kept)


def _prompt_mask(cache: kv.KVCache, positions_BT: Array) -> Array | None:
    if cache.prompt is None:
        return None
    samples = positions_BT.shape[0] // cache.prompt.positions_PS.shape[0]
    return cached_mask(positions_BT, jnp.repeat(cache.prompt.positions_PS, samples, axis=0))


def _attend_with(
    cache: kv.KVCache, layer: int, index: Array, own_mask: Array, prompt_mask: Array | None
) -> Callable[[Array, Array, Array], tuple[Array, kv.LayerKV]]:
    def attend(q_BTNH: Array, k_BTKH: Array, v_BTKH: Array) -> tuple[Array, kv.LayerKV]:
        own = kv.write(cache.layers[layer], k_BTKH, v_BTKH, index)
        if cache.prompt is None or prompt_mask is None:
            return attend_cached(q_BTNH, own, own_mask), own
        return attend_shared(q_BTNH, own, own_mask, cache.prompt.layers[layer], prompt_mask), own

    return attend
