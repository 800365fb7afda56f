"""The config of a whole model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from pttrainer.errors import ConfigError
from pttrainer.models.config import layer_groups
from pttrainer.models.config.any_vision import AnyVision
from pttrainer.models.config.attention import Chunk, Delta, GlobalHeads, Latent, Window
from pttrainer.models.config.experts import Experts
from pttrainer.models.config.layer_embeddings import LayerEmbeddings
from pttrainer.models.config.layer_groups import LayerGroup, Scan
from pttrainer.models.config.rope import LongRopeScaling, Rope

PLAIN_ROPE = Rope(10_000.0)
"""That of the paper (arXiv 2104.09864), and of the first Llama."""


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer. Sizes in elements; `family` selects the table of weight names.

    window: what a local layer sees. local_layers: which layers are local; empty for none. local_rope: rotary
    embedding of local layers where it differs. zero_centred_norms: norms multiply by 1 + scale. pre_norms, post_norms:
    norms before and after attention and MLP. qk_norm: a norm on each head of queries and keys, or, with
    whole_qk_norm, on all heads as one vector; local_l2_norm: one without a scale, behind the rotation, in local
    layers. interleaved_rope: pairs that turn are stored side by side. query_scale: factor of the scores, 1/√H if None.
    attention_softcap, final_softcap: x becomes cap · tanh(x / cap). sinks: a learned score per head that takes
    attention away from all keys. image_token_id: stands for a part of an image where the model has images.
    unsupported_token_ids: those that stand for what is no text and no image, by their key in `config.json`.
    dense_layers: which layers have an MLP although the model has experts; empty for none. latent: attention by a
    latent vector; head_dim is then that of queries and keys, and there are as many of the latter as heads. delta,
    delta_layers: layers with a gated delta rule, and which these are. gated: a sigmoid of the token scales each element
    that attention returns.
    global_heads: of global layers, where they have others than local ones; values_are_keys: of layers of one kind
    (`GlobalHeads`). value_norm: a norm without a scale on each value. borrowing_layers: which layers read the keys and
    values of the last layer of their kind before them that has its own; borrowing_d_ff: their feed-forward size where
    it differs. following_layers: which layers see what the last indexer before them chose. layer_embeddings: what
    layers are given of a token beside the stream. layer_scalars: a number per layer, which nothing trains, multiplies
    its result.
    prediction_layers: layers behind the last that predict further tokens; their weights are left out. vision: the
    tower whose embeddings stand in the places of image tokens, where the job takes images.
    """

    family: str
    vocab_size: int
    d_model: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    d_ff: int
    rope: Rope = PLAIN_ROPE
    norm_eps: float = 1e-5
    tied_head: bool = False
    max_positions: int = 4096
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    pad_id: int | None = None
    image_token_id: int | None = None
    unsupported_token_ids: tuple[tuple[str, int], ...] = ()
    activation: str = "silu"
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    whole_qk_norm: bool = False
    local_l2_norm: bool = False
    interleaved_rope: bool = False
    sinks: bool = False
    window: Window = None
    local_layers: tuple[bool, ...] = ()
    local_rope: Rope | None = None
    zero_centred_norms: bool = False
    pre_norms: bool = True
    post_norms: bool = False
    embedding_scale: float | None = None
    query_scale: float | None = None
    attention_softcap: float | None = None
    final_softcap: float | None = None
    experts: Experts | None = None
    dense_layers: tuple[bool, ...] = ()
    latent: Latent | None = None
    delta: Delta | None = None
    delta_layers: tuple[bool, ...] = ()
    gated: bool = False
    global_heads: GlobalHeads | None = None
    values_are_keys: bool = False
    value_norm: bool = False
    borrowing_layers: tuple[bool, ...] = ()
    borrowing_d_ff: int | None = None
    following_layers: tuple[bool, ...] = ()
    layer_embeddings: LayerEmbeddings | None = None
    layer_scalars: bool = False
    prediction_layers: int = 0
    vision: AnyVision | None = None

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"config.json num_attention_heads: {self.heads}: not divisible by the key/value heads; accepted: a "
                f"multiple of num_key_value_heads ({self.kv_heads})"
            )
        if self.rotary_dim % 2:
            name = "head_dim" if self.latent is None else "qk_rope_head_dim"
            raise ConfigError(f"config.json {name}: {self.rotary_dim}: is odd; accepted: an even number")
        if self.local_layers and len(self.local_layers) != self.layers:
            raise ConfigError(
                f"config.json layer_types: has {len(self.local_layers)} entries; accepted: num_hidden_layers of them "
                f"({self.layers})"
            )
        has_own_rope = self.local_rope is not None and not self.local_rope.share
        if any(self.local_layers) and self.window is None and not has_own_rope:
            raise ConfigError(
                "config.json sliding_window: unset; accepted: a number, because layer_types has sliding_attention"
            )

    def is_local(self, layer: int) -> bool:
        """Return True if a layer sees only its window."""
        return bool(self.local_layers) and self.local_layers[layer]

    def is_dense(self, layer: int) -> bool:
        """Return True if a layer has an MLP."""
        return self.experts is None or (bool(self.dense_layers) and self.dense_layers[layer])

    def is_delta(self, layer: int) -> bool:
        """Return True if a layer has a gated delta rule in place of attention."""
        return self.delta is not None and (not self.delta_layers or self.delta_layers[layer])

    def borrows(self, layer: int) -> bool:
        """Return True if a layer has no keys and values of its own."""
        return bool(self.borrowing_layers) and self.borrowing_layers[layer]

    def follows(self, layer: int) -> bool:
        """Return True if a layer sees what an earlier layer's indexer chose."""
        return bool(self.following_layers) and self.following_layers[layer]

    @property
    def absent(self) -> frozenset[str]:
        """Return the names of weights of attention that layers of this kind lack."""
        if self.borrows(0):
            return frozenset({"k", "v", "k_bias", "v_bias", "k_norm"})
        return frozenset({"v", "v_bias"} if self.values_are_keys else ())

    def lender(self, layer: int) -> int:
        """Return the layer whose keys and values a layer reads: itself, if it has its own."""
        if not self.borrows(layer):
            return layer
        return max(n for n in range(layer) if not self.borrows(n) and self.is_local(n) == self.is_local(layer))

    def chooser(self, layer: int) -> int:
        """Return the layer whose indexer chooses what a layer sees: itself, if it has its own."""
        return max(n for n in range(layer + 1) if not self.follows(n))

    @cached_property
    def scans(self) -> tuple[Scan, ...]:
        """Return the loops over layers, in order."""
        return layer_groups.scans(self)

    @cached_property
    def groups(self) -> tuple[LayerGroup, ...]:
        """Return the groups of all loops."""
        return tuple(group for scan in self.scans for group in scan)

    @cached_property
    def layer_places(self) -> tuple[tuple[LayerGroup, int], ...]:
        """Return each layer's group, and its place in it."""
        places = {number: (group, place) for group in self.groups for place, number in enumerate(group.numbers)}
        return tuple(places[layer] for layer in range(self.layers))

    @cached_property
    def expert_layers(self) -> tuple[int, ...]:
        """Return the numbers of the layers with experts, in order: axis L of a token's experts."""
        return tuple(layer for layer in range(self.layers) if not self.is_dense(layer))

    def at_length(self, length: int | None) -> ModelConfig:
        """Return the config for sequences of at most this many tokens; None for those that it is of already.

        It differs where the rotary embedding depends on the length (`LongRopeScaling`).
        """
        return self if length is None else replace(self, rope=self.rope.at_length(length))

    def first_layers(self, count: int) -> ModelConfig:
        """Return the config of a model with only the first layers."""
        return layer_groups.with_layers(self, range(count))

    @property
    def longest(self) -> int:
        """Return the most tokens of a sequence; fewer than max_positions with factors of short ones (`at_length`)."""
        scaling = self.rope.scaling
        if isinstance(scaling, LongRopeScaling) and not scaling.is_long:
            return min(self.max_positions, scaling.original_max_positions)
        return self.max_positions

    @property
    def scale(self) -> float:
        """Return the factor of the attention scores."""
        return self.head_dim**-0.5 if self.query_scale is None else self.query_scale

    @property
    def value_dim(self) -> int:
        """Return the size of a head's value."""
        return self.head_dim if self.latent is None else self.latent.value_dim

    @property
    def rotary_dim(self) -> int:
        """Return the size of the part of a head that has a rotary embedding."""
        return self.head_dim if self.latent is None else self.latent.rotary

    @property
    def cached(self) -> tuple[int, int, int]:
        """Return heads, elements of a key and elements of a value that a layer stores of each token."""
        if self.delta is not None or self.borrows(0):
            return 0, 0, 0
        if self.latent is not None:
            return 1, self.latent.stored, 0
        return self.kv_heads, self.head_dim, self.head_dim

    @property
    def is_pageable(self) -> bool:
        """Return True if every layer stores keys and values of one size and no window but one that slides."""
        is_uniform = self.global_heads is None and not any(self.borrowing_layers)
        return is_uniform and self.latent is None and self.delta is None and not isinstance(self.window, Chunk)
