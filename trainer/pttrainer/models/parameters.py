"""The weights of every model as plain data: of each its place in the tree, shape, logical axes and number format.

The one table of them. The modules (`layers`, `experts`, `decoder`) make their arrays of it, and preflight's formula
counts bytes with it where jax is not imported. Letters: L layers, D model, F feed-forward, E experts, V vocabulary.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from pttrainer.models.config import ModelConfig
from pttrainer.models.weights.hf_names import Path

Axes = tuple[str | None, ...]
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "int32": 4, "int8": 1, "uint8": 1, "float8_e4m3fn": 1}


class Declared(NamedTuple):
    """An array. axes: logical names (`division`). dtype: None for what the job stores weights in."""

    shape: tuple[int, ...]
    axes: Axes
    dtype: str | None = None

    @property
    def size(self) -> int:
        """Numbers."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Of all of it; its format must be set."""
        assert self.dtype is not None
        return self.size * ITEM_BYTES[self.dtype]


Weights = dict[Path, Declared]


def decoder(config: ModelConfig) -> Weights:
    """A whole model without adapters, nothing quantised."""
    parts = {"attention": attention(config), "mlp": feed_forward(config)}
    found: Weights = {("layers", part, name): one for part, named in parts.items() for name, one in named.items()}
    found |= {("layers", name, "scale"): norm(config) for name in norms(config)}
    if config.qk_norm:
        found |= {("layers", "attention", name, "scale"): head_norm(config) for name in ("q_norm", "k_norm")}
    found["embedding",] = table(config)
    found["norm", "scale"] = last_norm(config)
    if not config.tied_head:
        found["head",] = table(config)
    return found


def table(c: ModelConfig) -> Declared:
    """Embedding, and head."""
    return Declared((c.vocab_size, c.d_model), ("vocab", "embed"))


def last_norm(c: ModelConfig) -> Declared:
    """Behind all layers."""
    return Declared((c.d_model,), ("embed",))


def norms(c: ModelConfig) -> tuple[str, ...]:
    """Of a layer's stream."""
    behind = ("attention_post_norm", "mlp_post_norm") if c.post_norms else ()
    return ("attention_norm", "mlp_norm", *behind)


def norm(c: ModelConfig) -> Declared:
    """Each of them."""
    return Declared((c.layers, c.d_model), ("layer", "embed"))


def head_norm(c: ModelConfig) -> Declared:
    """Of queries and keys."""
    return Declared((c.layers, c.head_dim), ("layer", None))


def attention(c: ModelConfig) -> dict[str, Declared]:
    """Matrices, biases and sinks by name; the norms of queries and keys apart."""
    L, D, q, kv = c.layers, c.d_model, c.heads * c.head_dim, c.kv_heads * c.head_dim
    found = {
        "q": Declared((L, D, q), ("layer", "embed", "heads")),
        "k": Declared((L, D, kv), ("layer", "embed", "kv_heads")),
        "v": Declared((L, D, kv), ("layer", "embed", "kv_heads")),
        "o": Declared((L, q, D), ("layer", "heads", "embed")),
    }
    if c.qkv_bias:
        found["q_bias"] = Declared((L, q), ("layer", "heads"))
        found["k_bias"] = found["v_bias"] = Declared((L, kv), ("layer", "kv_heads"))
    if c.o_bias:
        found["o_bias"] = Declared((L, D), ("layer", "embed"))
    if c.sinks:
        found["sinks"] = Declared((L, c.heads), ("layer", "heads"))
    return found


def feed_forward(c: ModelConfig) -> dict[str, Declared]:
    """Of the MLP, or of the experts in its place."""
    return gated_mlp(c) if c.experts is None else experts(c)


def gated_mlp(c: ModelConfig) -> dict[str, Declared]:
    """Matrices and biases by name."""
    L, D, F = c.layers, c.d_model, c.d_ff
    inner = Declared((L, D, F), ("layer", "embed", "mlp"))
    found = {"gate": inner, "up": inner, "down": Declared((L, F, D), ("layer", "mlp", "embed"))}
    if c.mlp_bias:
        found["gate_bias"] = found["up_bias"] = Declared((L, F), ("layer", "mlp"))
        found["down_bias"] = Declared((L, D), ("layer", "embed"))
    return found


def experts(c: ModelConfig) -> dict[str, Declared]:
    """Router and experts by name."""
    assert c.experts is not None
    L, D, E, F = c.layers, c.d_model, c.experts.count, c.experts.d_ff
    inner, outer = ("layer", "expert", "expert_embed", "mlp"), ("layer", "expert", "mlp", "expert_embed")
    found = {"router": Declared((L, D, E), ("layer", "embed", None)), "down": Declared((L, E, F, D), outer)}
    if not c.experts.biased:
        return {**found, "gate": Declared((L, E, D, F), inner), "up": Declared((L, E, D, F), inner)}
    found["gate_up"] = Declared((L, E, D, 2 * F), inner)
    found["router_bias"] = Declared((L, E), ("layer", None))
    found["gate_up_bias"] = Declared((L, E, 2 * F), ("layer", "expert", "mlp"))
    found["down_bias"] = Declared((L, E, D), ("layer", "expert", "expert_embed"))
    return found


def value_head(width: int) -> dict[str, Declared]:
    """What a critic reads hidden states of this width with; small, and whole on every device."""
    return {"weight": Declared((width,), (None,), "float32"), "bias": Declared((), (), "float32")}


def low_rank(matrix: Declared, rank: int) -> dict[str, Declared]:
    """An adapter's two matrices, always float32: their steps are small, and so are they. A matrix's one axis over
    `tensor` and the other over `fsdp` is enough; each part has only one of them, so it is split by all."""
    *stack, inner, outer = matrix.shape
    name = "expert_low_rank" if "expert" in matrix.axes else "low_rank"
    split = [name if axis in ("heads", "kv_heads", "mlp") else axis for axis in matrix.axes]
    *stacked, inner_axis, outer_axis = split
    return {
        "a": Declared((*stack, inner, rank), (*stacked, inner_axis, None), "float32"),
        "b": Declared((*stack, rank, outer), (*stacked, None, outer_axis), "float32"),
    }


def whole_in_decoding(axes: Axes) -> Axes:
    """The axes of a weight that a sampler splits: it is whole over `fsdp`, or every token would gather it again."""
    return tuple(None if axis in ("embed", "expert_embed") else axis for axis in axes)
