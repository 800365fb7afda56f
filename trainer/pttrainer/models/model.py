"""The model as pure functions of an ordinary tree of weights.

`Model` is hashable and holds no weights, so it may be closed over or passed as a static argument of jit. Weights
(`Params`) are nested dictionaries of arrays. What computes: `forward.packed_rows` in training and scoring,
`decoding.decode` in sampling, both by the modules of `layers`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from pttrainer.batch import Images, Prompts
from pttrainer.models.attention import shared_prefix
from pttrainer.models.decoding import decode
from pttrainer.models.decoding.decode import Cache, without_layers
from pttrainer.models.forward import embedding
from pttrainer.models.forward.packed_rows import Perturbations, Rows, hidden_states
from pttrainer.models.layers.decoder import Decoder, skeleton_of
from pttrainer.models.layers.linear import Drop
from pttrainer.models.layers.mixture.router import RouterUse
from pttrainer.models.lora import adapters as lora
from pttrainer.models.lora import init_and_merge
from pttrainer.models.quantization import quantize as quant
from pttrainer.models.shapes import parameters
from pttrainer.models.shapes.structure import ModelStructure, Params


@dataclass(frozen=True)
class Model(ModelStructure):
    """A model structure and how to compute it."""

    @classmethod
    def from_structure(cls, form: ModelStructure) -> Model:
        """Return the model of this structure."""
        return cls(**{each.name: getattr(form, each.name) for each in fields(ModelStructure)})

    def abstract(self) -> Params:
        """Return shapes and dtypes of all weights without allocating them."""
        shapes: Params = jax.eval_shape(self._stored, dict(nnx.to_pure_dict(skeleton_of(self).shapes)))
        return shapes

    def logical_axes(self) -> Params:
        """Return the tree of `abstract`, with the names of each weight's axes in its leaves."""
        is_variable = lambda x: isinstance(x, nnx.Variable)  # noqa: E731
        axes = jax.tree.map(lambda v: v.get_metadata()["axes"], skeleton_of(self).shapes, is_leaf=is_variable)
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
        """Return weights for `without_adapters.unquantised` that compute the same, in `exported_dtype`.

        With that, or with quantised matrices, those of layers are a `quantize.Stack`.
        """
        if self.adapters is None:
            return params
        scale, dtype = self.adapters.scale, self.exported_dtype
        if self.quantization is None and dtype is None:
            return init_and_merge.merged(params, scale)
        whole = replace(self.without_adapters.unquantised, param_dtype=dtype or self.param_dtype).abstract()
        stacks = [group.name for group in self.config.groups]
        others = {name: part for name, part in params.items() if name not in stacks}
        by_layer = partial(init_and_merge.merged_by_layer, scale=scale, kind=self.quantization)
        return init_and_merge.merged(others, scale, dtype) | {
            name: by_layer(params[name], whole[name]) for name in stacks
        }

    def forward(
        self,
        params: Params,
        tokens_BT: Array,
        positions_BT: Array,
        segment_ids_BT: Array,
        noisy: Callable[[Array], Array] | None = None,
        dropped: Callable[[Array], Drop] | None = None,
        prompts: Prompts | None = None,
        images: Images | None = None,
        routes_BTLk: Array | None = None,
    ) -> Array:
        """Return the final hidden states [B, T, D] of packed rows, after the last norm, before the head.

        If the head has an adapter, its rank's activations follow the D, like its other part in `head`.

        Segment ids separate the examples of a row (0 is padding); positions restart with each example. noisy:
        changes embeddings in training; dropped: changes the input of a layer's adapters, by the layer's number.
        prompts: shared prefixes of the rows (`batch.Prompts`); they exclude noisy and dropped. images: of the rows, or
        of their shared prompts. routes_BTLk: each token's experts (`Batch`), which exclude shared prefixes.
        """
        rows, perturbations = Rows(tokens_BT, positions_BT, segment_ids_BT, images), Perturbations(noisy, dropped)
        if prompts is None:
            return hidden_states(self, params, rows, perturbations, routes_BTLk=routes_BTLk)[0]
        assert routes_BTLk is None, "rows of a model with experts hold their prompts (`prompt_sharing`)"
        hidden_BTD, _ = hidden_states(self, params, rows, prompts=prompts)
        return shared_prefix.taken(hidden_BTD, prompts, tokens_BT.shape[0])

    def forward_with_use(
        self,
        params: Params,
        tokens_BT: Array,
        positions_BT: Array,
        segment_ids_BT: Array,
        noisy: Callable[[Array], Array] | None = None,
        dropped: Callable[[Array], Drop] | None = None,
        images: Images | None = None,
        routes_BTLk: Array | None = None,
    ) -> tuple[Array, RouterUse]:
        """Compute `forward`, and how the layers' routers use their experts (padding does not count)."""
        rows, perturbations = Rows(tokens_BT, positions_BT, segment_ids_BT, images), Perturbations(noisy, dropped)
        hidden_BTD, use = hidden_states(self, params, rows, perturbations, segment_ids_BT > 0, routes_BTLk=routes_BTLk)
        assert use is not None
        return hidden_BTD, use

    def logits(self, params: Params, hidden_BTD: Array) -> Array:
        """Return all logits [B, T, V], float32, with soft cap: for tests and comparisons with other implementations."""
        head_VD = self.head(params).astype(hidden_BTD.dtype)
        return self.capped(jnp.einsum("btd,vd->btv", hidden_BTD, head_VD, preferred_element_type=jnp.float32))

    def capped(self, logits: Array) -> Array:
        """Apply the model's soft cap to logits, if it has one (Gemma 2)."""
        cap = self.config.final_softcap
        return logits if cap is None else cap * jnp.tanh(logits / cap)

    def decode(
        self,
        params: Params,
        tokens_BT: Array,
        positions_BT: Array,
        cache: Cache,
        images: Images | None = None,
        *,
        is_gathered: bool = False,
    ) -> tuple[Array, Cache]:
        """Return the final hidden states [B, T, D] of new tokens and the new cache.

        New tokens see the cache and each other. `params` come from `for_decoding`. A token at position -1 is
        padding: it is stored as an empty slot, and its hidden state is meaningless. Serves prefill (T = prompt
        length) and steps (T = 1). A paged cache is read by the kernel of `paged_kernel`. images: of whole prompts, into
        an empty cache of their size. is_gathered: the devices of `tensor` divide rows that fill the cache, too, and
        gather the matrices.
        """
        hidden_BTD, cache, _ = decode.decode(
            self, params, tokens_BT, positions_BT, cache, images, is_gathered=is_gathered
        )
        return hidden_BTD, cache

    def decode_routed(
        self, params: Params, tokens_BT: Array, positions_BT: Array, cache: Cache, images: Images | None = None
    ) -> tuple[Array, Cache, Array]:
        """Compute `decode`, and return the experts of each token, too: [B, T, L, k], in few bits (`Batch`)."""
        assert self.config.experts is not None
        hidden_BTD, cache, routes = decode.decode(self, params, tokens_BT, positions_BT, cache, images)
        return hidden_BTD, cache, jnp.stack(routes, axis=2).astype(self.config.experts.number_dtype)

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
        """Return the output head [V, D], or with an adapter [V, D + rank]: logits are hidden_BTD @ head_VD.T."""
        return embedding.head(self.config, params)

    def _stored(self, params: Params) -> Params:
        """Cast to the format of the weights; adapters stay float32, because they and their updates are small."""
        return lora.join(_cast(lora.without_adapters(params), self.param_dtype), lora.only_adapters(params))


def _cast(params: Params, dtype: str) -> Params:
    """Cast weights to this number format; quantised ones and a router's correction keep theirs."""

    def one(path: Any, x: Any) -> Any:
        return x if quant.is_quantised(x) or path[-1].key == parameters.CORRECTION else x.astype(dtype)

    cast: Params = jax.tree_util.tree_map_with_path(one, params, is_leaf=quant.is_quantised)
    return cast
