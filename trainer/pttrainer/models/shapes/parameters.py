"""The weights of every model as plain data: place in the tree, shape, logical axes and number format.

The single table of weights. The modules (`layers`) create their arrays from it, and preflight's
formula counts bytes with it without jax. Letters: L layers, D model, F feed-forward, E experts, V vocabulary.
"""

import math
from typing import Literal, NamedTuple

from pttrainer.models.config import Delta, Latent, ModelConfig
from pttrainer.models.weights.hf_names import Path
from pttrainer.runtime.distributed.logical_axes import Axes as Axes

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "int32": 4, "int8": 1, "uint8": 1, "float8_e4m3fn": 1}
INDEXER = "indexer"
"""Its part of a layer's attention."""
LAYER_EMBEDDINGS = "layer_embeddings"
"""Their part of the tree, outside the layers."""
CORRECTION = "router_correction"
"""What is added to an expert's score for the choice alone: always float32, as differences of scores are small."""


class ParamSpec(NamedTuple):
    """The spec of an array.

    axes: logical names (`logical_axes`). dtype: None for the job's storage format. mean_of: the weight, and which of
    its axes is gone, of a mean that an optimizer keeps; it is split as the weight is.
    """

    shape: tuple[int, ...]
    axes: Axes
    dtype: str | None = None
    mean_of: tuple["ParamSpec", int] | None = None

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Return the number of bytes; the dtype must be set."""
        assert self.dtype is not None
        return self.size * ITEM_BYTES[self.dtype]


Weights = dict[Path, ParamSpec]
EXPERT_NORMS = ("shared_post_norm", "routed_norm", "routed_post_norm")
"""Of experts beside an MLP: behind the MLP, before and behind the experts."""


def decoder(config: ModelConfig) -> Weights:
    """Return the weights of a model without adapters and quantisation."""
    params: Weights = {
        (group.name, *path): one for group in config.groups for path, one in _of_layers(group.config).items()
    }
    params["embedding",] = table(config)
    params["norm", "scale"] = last_norm(config)
    params |= {(LAYER_EMBEDDINGS, *path): one for path, one in layer_embeddings(config).items()}
    if not config.tied_head:
        params["head",] = table(config)
    return params


def count(config: ModelConfig) -> int:
    """Return the number of a model's weights."""
    return sum(one.size for one in decoder(config).values())


def _of_layers(c: ModelConfig) -> Weights:
    """Return the weights of layers of one kind."""
    parts = {"attention": attention(c), "mlp": feed_forward(c)}
    params: Weights = {(part, name): one for part, named in parts.items() for name, one in named.items()}
    params |= {(name, "scale"): norm(c) for name in norms(c)}
    params |= {("attention", name, "scale"): one for name, one in attention_norms(c).items()}
    params |= {("attention", INDEXER, name): one for name, one in indexer(c).items()}
    if c.experts is not None and c.experts.beside_mlp:
        params |= {("mlp", name, "scale"): norm(c) for name in EXPERT_NORMS}
    if c.layer_embeddings is not None:
        params |= {("layer_input", name): one for name, one in layer_input(c).items()}
        params["layer_input", "norm", "scale"] = norm(c)
    if c.layer_scalars:
        params["scalar",] = layer_scalar(c)
    return params


def layer_embeddings(c: ModelConfig) -> Weights:
    """Return the table of embeddings per layer, and the projection of the first embedding that is added, normed."""
    if c.layer_embeddings is None:
        return {}
    width = c.layers * c.layer_embeddings.size
    return {
        ("table",): ParamSpec((c.layer_embeddings.vocab_size, width), ("vocab", "embed")),
        ("context",): ParamSpec((c.d_model, width), ("embed", None)),
        ("norm", "scale"): ParamSpec((c.layer_embeddings.size,), (None,)),
    }


def layer_input(c: ModelConfig) -> dict[str, ParamSpec]:
    """Return the matrices by which a layer reads its own embedding."""
    assert c.layer_embeddings is not None
    L, D, P = c.layers, c.d_model, c.layer_embeddings.size
    return {
        "input_gate": ParamSpec((L, D, P), ("layer", "embed", None)),
        "input_out": ParamSpec((L, P, D), ("layer", None, "embed")),
    }


def layer_scalar(c: ModelConfig) -> ParamSpec:
    """Return the spec of the number that multiplies a layer's result."""
    return ParamSpec((c.layers, 1), ("layer", None))


def table(c: ModelConfig) -> ParamSpec:
    """Return the spec of embedding and head."""
    return ParamSpec((c.vocab_size, c.d_model), ("vocab", "embed"))


def last_norm(c: ModelConfig) -> ParamSpec:
    """Return the spec of the norm after all layers."""
    return ParamSpec((c.d_model,), ("embed",))


def norms(c: ModelConfig) -> tuple[str, ...]:
    """Return the names of a layer's norms."""
    before = ("attention_norm", "mlp_norm") if c.pre_norms else ()
    behind = ("attention_post_norm", "mlp_post_norm") if c.post_norms else ()
    return (*before, *behind)


def norm(c: ModelConfig) -> ParamSpec:
    """Return the spec of a layer's norm."""
    return ParamSpec((c.layers, c.d_model), ("layer", "embed"))


def attention_norms(c: ModelConfig) -> dict[str, ParamSpec]:
    """Return the specs of the norms inside attention."""
    if c.delta is not None:
        return {}
    if c.latent is not None:
        sizes = {"q_norm": c.latent.query_rank, "kv_norm": c.latent.rank}
        return {name: ParamSpec((c.layers, size), ("layer", None)) for name, size in sizes.items() if size is not None}
    norms = {"q_norm": head_norm(c, "q"), "k_norm": head_norm(c, "k")} if c.qk_norm else {}
    return {name: one for name, one in norms.items() if name not in c.absent}


def head_norm(c: ModelConfig, of: Literal["q", "k"]) -> ParamSpec:
    """Return the spec of the norm of queries or keys: of each head, or of all of them as one vector."""
    if c.whole_qk_norm:
        heads, axis = (c.heads, "heads") if of == "q" else (c.kv_heads, "kv_heads")
        return ParamSpec((c.layers, heads * c.head_dim), ("layer", axis))
    return ParamSpec((c.layers, c.head_dim), ("layer", None))


def attention(c: ModelConfig) -> dict[str, ParamSpec]:
    """Return matrices, biases and sinks by name, without the norms of queries and keys."""
    if c.latent is not None:
        return _latent_attention(c, c.latent)
    if c.delta is not None:
        return _delta(c, c.delta)
    L, D, q, kv = c.layers, c.d_model, c.heads * c.head_dim, c.kv_heads * c.head_dim
    params = {
        "q": ParamSpec((L, D, 2 * q if c.gated else q), ("layer", "embed", "heads")),
        "k": ParamSpec((L, D, kv), ("layer", "embed", "kv_heads")),
        "v": ParamSpec((L, D, kv), ("layer", "embed", "kv_heads")),
        "o": ParamSpec((L, q, D), ("layer", "heads", "embed")),
    }
    if c.qkv_bias:
        params["q_bias"] = ParamSpec((L, q), ("layer", "heads"))
        params["k_bias"] = params["v_bias"] = ParamSpec((L, kv), ("layer", "kv_heads"))
    if c.o_bias:
        params["o_bias"] = ParamSpec((L, D), ("layer", "embed"))
    if c.sinks:
        params["sinks"] = ParamSpec((L, c.heads), ("layer", "heads"))
    return {name: one for name, one in params.items() if name not in c.absent}


def _latent_attention(c: ModelConfig, of: Latent) -> dict[str, ParamSpec]:
    L, D, q = c.layers, c.d_model, c.heads * c.head_dim
    expanded = c.heads * (c.head_dim - of.rotary + of.value_dim)
    params = {
        "kv_down": ParamSpec((L, D, of.rank + of.rotary), ("layer", "embed", "latent")),
        "kv_up": ParamSpec((L, of.rank, expanded), ("layer", "embed", "heads")),
        "o": ParamSpec((L, c.heads * of.value_dim, D), ("layer", "heads", "embed")),
    }
    if c.qkv_bias:
        params["kv_down_bias"] = ParamSpec((L, of.rank + of.rotary), ("layer", "latent"))
    if c.o_bias:
        params["o_bias"] = ParamSpec((L, D), ("layer", "embed"))
    if of.query_rank is None:
        return params | {"q": ParamSpec((L, D, q), ("layer", "embed", "heads"))}
    if c.qkv_bias:
        params["q_down_bias"] = ParamSpec((L, of.query_rank), ("layer", "latent"))
    params["q_down"] = ParamSpec((L, D, of.query_rank), ("layer", "embed", "latent"))
    params["q_up"] = ParamSpec((L, of.query_rank, q), ("layer", "embed", "heads"))
    return params


def indexer(c: ModelConfig) -> dict[str, ParamSpec]:
    """Return the weights of what chooses the tokens that a query sees; none if it sees all."""
    if c.latent is None or c.latent.own_indexer is None:
        return {}
    assert c.latent.query_rank is not None
    L, of = c.layers, c.latent.own_indexer
    vector = ParamSpec((L, of.head_dim), ("layer", None))
    return {
        "q": ParamSpec((L, c.latent.query_rank, of.heads * of.head_dim), ("layer", "latent", None)),
        "k": ParamSpec((L, c.d_model, of.head_dim), ("layer", "embed", None)),
        "weights": ParamSpec((L, c.d_model, of.heads), ("layer", "embed", None)),
        "norm_scale": vector,
        "norm_bias": vector,
    }


def _delta(c: ModelConfig, of: Delta) -> dict[str, ParamSpec]:
    """Return the weights of a gated delta rule; those of decays and of the norm of results are vectors."""
    L, D, values = c.layers, c.d_model, of.value_heads * of.value_dim
    widths = {"qkv": of.channels, "z": values, "b": of.value_heads, "a": of.value_heads}
    if of.by_head:
        widths = {"qkvz": of.channels + values, "ba": 2 * of.value_heads}
    wide = ("qkv", "z", "qkvz")
    params = {
        name: ParamSpec((L, D, width), ("layer", "embed", "heads" if name in wide else None))
        for name, width in widths.items()
    }
    return params | {
        "o": ParamSpec((L, values, D), ("layer", "heads", "embed")),
        "conv": ParamSpec((L, of.channels, 1, of.width), ("layer", None, None, None)),
        "decay": ParamSpec((L, of.value_heads), ("layer", None)),
        "decay_bias": ParamSpec((L, of.value_heads), ("layer", None)),
        "norm_scale": ParamSpec((L, of.value_dim), ("layer", None)),
    }


def feed_forward(c: ModelConfig) -> dict[str, ParamSpec]:
    """Return the weights of the MLP, or of its experts."""
    return gated_mlp(c) if c.experts is None else experts(c)


def gated_mlp(c: ModelConfig) -> dict[str, ParamSpec]:
    """Return matrices and biases by name."""
    L, D, F = c.layers, c.d_model, c.d_ff
    inner = ParamSpec((L, D, F), ("layer", "embed", "mlp"))
    params = {"gate": inner, "up": inner, "down": ParamSpec((L, F, D), ("layer", "mlp", "embed"))}
    if c.mlp_bias:
        params["gate_bias"] = params["up_bias"] = ParamSpec((L, F), ("layer", "mlp"))
        params["down_bias"] = ParamSpec((L, D), ("layer", "embed"))
    return params


def experts(c: ModelConfig) -> dict[str, ParamSpec]:
    """Return router and experts by name."""
    assert c.experts is not None
    L, D, E, F = c.layers, c.d_model, c.experts.count, c.experts.d_ff
    inner, outer = ("layer", "expert", "expert_embed", "mlp"), ("layer", "expert", "mlp", "expert_embed")
    params = {"router": ParamSpec((L, D, E), ("layer", "embed", None)), "down": ParamSpec((L, E, F, D), outer)}
    if c.experts.corrected:
        params[CORRECTION] = ParamSpec((L, E), ("layer", None), "float32")
    if c.experts.shared_d_ff:
        shared = ParamSpec((L, D, c.experts.shared_d_ff), ("layer", "embed", "mlp"))
        params |= {"shared_gate": shared, "shared_up": shared}
        params["shared_down"] = ParamSpec((L, c.experts.shared_d_ff, D), ("layer", "mlp", "embed"))
    if c.experts.shared_gated:
        params["shared_scale"] = ParamSpec((L, D, 1), ("layer", "embed", None))
    if c.experts.beside_mlp:
        params["router_scale"] = ParamSpec((L, D), ("layer", "embed"))
        params["expert_scale"] = ParamSpec((L, E), ("layer", None))
    params["gate"] = params["up"] = ParamSpec((L, E, D, F), inner)
    if c.experts.biased:
        params["router_bias"] = ParamSpec((L, E), ("layer", None))
        params["gate_bias"] = params["up_bias"] = ParamSpec((L, E, F), ("layer", "expert", "mlp"))
        params["down_bias"] = ParamSpec((L, E, D), ("layer", "expert", "expert_embed"))
    return params


def value_head(width: int, *, has_bias: bool = True) -> dict[str, ParamSpec]:
    """Return a critic's value head for hidden states of this width; small, and replicated."""
    weight = {"weight": ParamSpec((width,), (None,), "float32")}
    return weight | {"bias": ParamSpec((), (), "float32")} if has_bias else weight


def block_head(tokens: int, width: int) -> dict[str, ParamSpec]:
    """Return the head that proposes `tokens` tokens (`models.decoding.block_head`), float32, because it is small.

    Both matrices of its MLP are as wide inside as the model's hidden states.
    """
    return {
        "down": ParamSpec((tokens, width, width), (None, "mlp", "embed"), "float32"),
        "up": ParamSpec((2 * width, width), ("embed", "mlp"), "float32"),
    }


def low_rank(matrix: ParamSpec, rank: int) -> dict[str, ParamSpec]:
    """Return an adapter's two matrices, always float32, because they and their updates are small.

    A matrix with one axis over `tensor` and the other over `fsdp` is split enough; each part has only one of them,
    so it is split by all.
    """
    *stack, inner, outer = matrix.shape
    name = "expert_low_rank" if "expert" in matrix.axes else "low_rank"
    split = [name if axis in ("heads", "kv_heads", "mlp") else axis for axis in matrix.axes]
    *stacked, inner_axis, outer_axis = split
    return {
        "a": ParamSpec((*stack, inner, rank), (*stacked, inner_axis, None), "float32"),
        "b": ParamSpec((*stack, rank, outer), (*stacked, None, outer_axis), "float32"),
    }


def decoding_axes(axes: Axes, *, is_quantised: bool = False) -> Axes:
    """Return the axes of a weight that a sampler splits.

    It is replicated over `fsdp`, or every token would gather it again. Quantised experts are split as others are,
    along the inner axis: their parts are of several shapes. Experts' biases, which are small, are whole on each device.
    """
    names: dict[str, str | None] = {"embed": None, "expert_embed": None}
    if {"mlp", "expert_embed"} <= set(axes):
        names |= {} if is_quantised else {"expert": "sampled_expert"}
    elif "expert" in axes:
        names |= {"mlp": None}
    return tuple(None if axis is None else names.get(axis, axis) for axis in axes)
