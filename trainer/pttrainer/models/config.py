"""The architecture of a model: one frozen, hashable value that covers every family the decoder supports.

Left out: weights, number formats, layout over devices, and Hugging Face's spelling of all this in `config.json`
(`families`). An option that is off costs nothing: the decoder leaves it out of the compiled program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pttrainer.errors import ConfigError

FLOAT8_BLOCK = 128
"""Rows and columns of a matrix in 8-bit floats that share a scale."""
LANES = 128
"""Lane width of a TPU's memory. Heads of a paged cache are padded to a multiple of it, which they occupy anyway."""


def head_size(head_dim: int) -> int:
    """Return the padded head size in a page."""
    return -(-head_dim // LANES) * LANES


@dataclass(frozen=True)
class Chunk:
    """A window that does not slide: a token sees those of its own chunk of positions, up to itself."""

    size: int


Window = int | Chunk | None
"""Which tokens a layer sees: so many, the query's own included, those of a chunk, or all."""


@dataclass(frozen=True)
class LinearScaling:
    """All rotary frequencies divided by `factor` (position interpolation, arXiv 2306.15595)."""

    factor: float


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's change of the rotary frequencies: long wavelengths are stretched by `factor`."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071): slow frequencies interpolated, fast ones kept, a ramp between.

    attention_factor: multiplies cosine and sine, which sharpens attention over long contexts. truncate: round the
    ends of the ramp to whole frequencies.
    """

    factor: float
    original_max_positions: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


Scaling = LinearScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True)
class QueryScaling:
    """Queries far from the beginning are longer: times 1 + slope · ln(1 + ⌊(position + first) / period⌋)."""

    slope: float
    period: int
    first: int = 0


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding: base, and the scaling of its frequencies for longer contexts.

    share: of a head's elements, the first ones, that turn; 0 for none. query_scaling: of queries by position.
    """

    theta: float
    scaling: Scaling | None = None
    share: float = 1.0
    query_scaling: QueryScaling | None = None


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in place of the MLP.

    per_token: experts that a token uses. normalised: their weights sum to 1. biased: router and experts add biases,
    and the gated unit is gpt-oss's, clamped at `clamp` with a sigmoid of slope `slope`. balance_coefficient: weight
    of the load-balance loss in training, 0 for none.

    sigmoid: an expert's score is a sigmoid and not a softmax, and the router computes in float32. corrected: a number
    per expert is added to the scores for the choice alone (arXiv 2408.15664). groups, groups_used: experts are chosen
    within the best groups, by the sum of their two best scores. scale: of the chosen experts' weights.
    shared_d_ff: feed-forward size of an expert that all tokens use, 0 for none; shared_gated: a sigmoid of the token
    scales it. weighs_inputs: a token is weighed before its experts and not behind them.
    """

    count: int
    per_token: int
    d_ff: int
    normalised: bool = True
    biased: bool = False
    clamp: float = 0.0
    slope: float = 1.0
    balance_coefficient: float = 0.0
    sigmoid: bool = False
    corrected: bool = False
    groups: int = 1
    groups_used: int = 1
    scale: float = 1.0
    shared_d_ff: int = 0
    shared_gated: bool = False
    weighs_inputs: bool = False

    @property
    def is_linear(self) -> bool:
        """Return True if an expert's matrices are linear layers in transformers, which adapters can be on."""
        return not self.biased and not self.weighs_inputs

    def __post_init__(self) -> None:
        if self.per_token > self.count:
            raise ConfigError(
                f"config.json num_experts_per_tok: {self.per_token}: more than there are experts; accepted: at most "
                f"{self.count}"
            )
        if self.count % self.groups or self.groups_used > self.groups:
            raise ConfigError(
                f"config.json n_group: {self.groups}: accepted: a divisor of the {self.count} experts, and at least "
                f"topk_group ({self.groups_used})"
            )
        if self.groups > 1 and self.per_token > self.count // self.groups * self.groups_used:
            raise ConfigError(
                f"config.json num_experts_per_tok: {self.per_token}: more than the experts of {self.groups_used} "
                f"groups; accepted: at most {self.count // self.groups * self.groups_used}"
            )


@dataclass(frozen=True)
class Latent:
    """Attention whose keys and values come from one vector per token (arXiv 2405.04434).

    rank: elements of that vector; query_rank: of the one that queries come from, None for none. rotary: last elements
    of a head that turn; in keys all heads share them. value_dim: elements of a head's value. interleaved: pairs that
    turn are stored side by side.
    """

    rank: int
    query_rank: int | None
    rotary: int
    value_dim: int
    interleaved: bool = True


@dataclass(frozen=True)
class Delta:
    """Layers with a gated delta rule in place of attention (arXiv 2412.06464).

    key_dim, value_dim: elements of a head's key and value; value_heads: a multiple of key_heads. width: tokens that the
    convolution before it sees. by_head: one matrix holds a key head's part of queries, keys, values and gates together.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    width: int
    by_head: bool = False

    def __post_init__(self) -> None:
        if self.value_heads % self.key_heads:
            raise ConfigError(
                f"config.json linear_num_value_heads: {self.value_heads}: accepted: a multiple of linear_num_key_heads "
                f"({self.key_heads})"
            )

    @property
    def channels(self) -> int:
        """Return the elements that are convolved: queries, keys and values of all heads."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def state_size(self) -> int:
        """Return the elements of a row's state."""
        return self.value_heads * self.key_dim * self.value_dim


@dataclass(frozen=True)
class LayerGroup:
    """Layers of one kind whose weights are stacked.

    numbers: of these layers; config: of a model that has no others, whose layers are counted from 0.
    """

    name: str
    numbers: range
    config: ModelConfig


Segment = tuple[LayerGroup, ...]
"""A run of layers in which a period of kinds repeats: a group for each place in the period, all equally long."""


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
    dense_layers: which layers have an MLP although the model has experts; empty for none. latent: attention by a
    latent vector; head_dim is then that of queries and keys, and there are as many of the latter as heads. delta,
    delta_layers: layers with a gated delta rule, and which these are. gated: a sigmoid of the token scales each element
    that attention returns.
    prediction_layers: layers behind the last that predict further tokens; their weights are left out.
    """

    family: str
    vocab_size: int
    d_model: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    d_ff: int
    rope: Rope = Rope(10_000.0)
    norm_eps: float = 1e-5
    tied_head: bool = False
    max_positions: int = 4096
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    pad_id: int | None = None
    image_token_id: int | None = None
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
    prediction_layers: int = 0

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

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """Return the layers in order. Layers that differ only in what they see (`is_local`) are of one kind."""
        kinds = [
            (self.is_dense(layer), self.is_delta(layer), self.local_l2_norm and self.is_local(layer))
            for layer in range(self.layers)
        ]
        if len(set(kinds)) == 1:
            return ((LayerGroup(LAYERS, range(self.layers), self),),)
        segments: list[Segment] = []
        for numbers in periods(kinds):
            first = sum(map(len, segments))
            segments.append(tuple(self._group(f"{LAYERS}_{first + n}", each) for n, each in enumerate(numbers)))
        return tuple(segments)

    @cached_property
    def groups(self) -> Segment:
        """Return the groups of all segments."""
        return tuple(group for segment in self.segments for group in segment)

    @cached_property
    def layer_places(self) -> tuple[tuple[LayerGroup, int], ...]:
        """Return each layer's group, and its place in it."""
        places = {number: (group, place) for group in self.groups for place, number in enumerate(group.numbers)}
        return tuple(places[layer] for layer in range(self.layers))

    def first_layers(self, count: int) -> ModelConfig:
        """Return the config of a model with only the first layers."""
        return self._of_layers(range(count))

    def _group(self, name: str, numbers: range) -> LayerGroup:
        of_kind = self._of_layers(numbers)
        experts = None if of_kind.is_dense(0) else self.experts
        delta = self.delta if of_kind.is_delta(0) else None
        one_kind = replace(of_kind, dense_layers=(), delta_layers=(), experts=experts, delta=delta)
        return LayerGroup(name, numbers, one_kind)

    def _of_layers(self, numbers: range) -> ModelConfig:

        def chosen(flags: tuple[bool, ...]) -> tuple[bool, ...]:
            return tuple(flags[layer] for layer in numbers) if flags else ()

        flags = {name: chosen(getattr(self, name)) for name in ("local_layers", "dense_layers", "delta_layers")}
        changes: dict[str, Any] = {"layers": len(numbers), **flags}
        return replace(self, **changes)

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
        if self.delta is not None:
            return 0, 0, 0
        if self.latent is not None:
            return 1, self.latent.rank + self.latent.rotary, 0
        return self.kv_heads, self.head_dim, self.head_dim

    @property
    def is_pageable(self) -> bool:
        """Return True if every layer stores keys and values of one size and no window but one that slides."""
        return self.latent is None and self.delta is None and not isinstance(self.window, Chunk)

    @property
    def parameters(self) -> int:
        """Return the number of weights."""
        embeddings = self.vocab_size * self.d_model * (1 if self.tied_head else 2)
        of_layers = sum(
            group.config.layers * (group.config._attention_weights() + group.config._mlp_weights())
            for group in self.groups
        )
        return of_layers + embeddings + self.d_model

    def _attention_weights(self) -> int:
        """Return the number of one layer's attention weights, including its norms."""
        q, kv, D = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.d_model
        if self.latent is not None:
            return self._latent_weights(self.latent) + 2 * D
        if self.delta is not None:
            of, values = self.delta, self.delta.value_heads * self.delta.value_dim
            inputs = of.channels + values + 2 * of.value_heads
            return D * (inputs + values) + of.channels * of.width + 2 * of.value_heads + of.value_dim + 2 * D
        biases = (q + 2 * kv if self.qkv_bias else 0) + (D if self.o_bias else 0)
        of_heads = q + kv if self.whole_qk_norm else 2 * self.head_dim
        norms = 2 * D * (self.pre_norms + self.post_norms) + (of_heads if self.qk_norm else 0)
        return D * ((3 if self.gated else 2) * q + 2 * kv) + biases + norms + (self.heads if self.sinks else 0)

    def _latent_weights(self, of: Latent) -> int:
        q, D, ranks = self.heads * self.head_dim, self.d_model, of.rank + (of.query_rank or 0)
        queries = D * q if of.query_rank is None else of.query_rank * (D + q)
        expanded = self.heads * (self.head_dim - of.rotary + of.value_dim)
        return queries + D * (of.rank + of.rotary) + of.rank * expanded + self.heads * of.value_dim * D + ranks

    def _mlp_weights(self) -> int:
        D, F = self.d_model, self.d_ff
        if self.experts is None:
            return 3 * D * F + (2 * F + D if self.mlp_bias else 0)
        E, F = self.experts.count, self.experts.d_ff
        biases = E + E * (2 * F + D) if self.experts.biased else 0
        extra = (E if self.experts.corrected else 0) + (D if self.experts.shared_gated else 0)
        return D * E + E * 3 * D * F + biases + extra + 3 * D * self.experts.shared_d_ff


def periods(kinds: Sequence[Any]) -> list[list[range]]:
    """Cut a sequence of layers into runs with a repeating period, so that all periods together are shortest.

    A program holds one body for each place of each period. Returns the layers' numbers, by run and place.
    """
    ends: dict[int, tuple[int, list[list[range]]]] = {len(kinds): (0, [])}
    for first in reversed(range(len(kinds))):
        choices = []
        for period in range(1, len(kinds) - first + 1):
            end = first + period
            while end + period <= len(kinds) and kinds[end : end + period] == kinds[first : first + period]:
                end += period
            cost, rest = ends[end]
            choices.append((period + cost, [[range(first + n, end, period) for n in range(period)], *rest]))
        ends[first] = min(choices, key=lambda choice: (choice[0], len(choice[1])))
    return ends[0][1]


LAYERS = "layers"
"""Name of the stacked layers in a tree of weights; with several groups, a number follows."""

Raw = Mapping[str, Any]
"""The content of a `config.json`."""
