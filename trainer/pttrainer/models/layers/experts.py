"""A mixture of experts in place of the MLP: every token by its best k experts, none dropped.

Letters: B rows, T tokens, M = B·T, D model, F feed-forward of an expert, E experts, k experts per token.

Tokens are sorted by expert and the products are grouped (`jax.lax.ragged_dot`), so the work is that of k experts per
token whatever the router does, and no capacity limit drops a token.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from pttrainer.models.config import Experts, ModelConfig
from pttrainer.models.layers.expert_parallel import Matrices, over_mesh
from pttrainer.models.layers.gated_mlp import ACTIVATIONS
from pttrainer.models.layers.linear import low_rank, product, put_matrix, weight, zeros, zeros_if
from pttrainer.models.lora.adapters import Adapters
from pttrainer.models.shapes import parameters
from pttrainer.runtime.distributed import sharding

PLAIN = ("gate", "up", "down")
BIASED = ("gate_up", "gate_up_bias", "down", "down_bias")
"""An expert's weights."""
SHARED = ("shared_gate", "shared_up", "shared_down")
"""Those of the expert that all tokens use."""


class RouterUse(NamedTuple):
    """Sums over tokens that count: how many chose each expert, its probability, and how many tokens there were."""

    chosen_E: Array
    probability_E: Array
    tokens: Array


def balance_loss(use: RouterUse, experts: Experts) -> Array:
    """Return E · Σ_e share(e) · mean probability(e), over tokens and layers; k if experts are used equally.

    `use` has a leading layer axis. From the Switch Transformer (arXiv 2101.03961, equations 4 to 6), for k > 1 as
    in transformers.
    """
    tokens = jnp.maximum(jnp.sum(use.tokens), 1.0)
    share_E, probability_E = (jnp.sum(x, axis=0) / tokens for x in (use.chosen_E, use.probability_E))
    return experts.count * jnp.sum(share_E * probability_E)


def joined_use(uses: Sequence[RouterUse]) -> RouterUse | None:
    """Return the use of all layers, from that of several stacks of them; None without any."""
    if len(uses) <= 1:
        return uses[0] if uses else None
    joined: RouterUse = jax.tree.map(lambda *parts: jnp.concatenate(parts), *uses)
    return joined


def choose(logits_BTE: Array, correction_E: Array | None, experts: Experts) -> tuple[Array, Array]:
    """Return the numbers and the weights of each token's experts, [B, T, k] both."""
    if experts.sigmoid:
        return _choose_by_sigmoid(logits_BTE, correction_E, experts)
    best_BTk, expert_BTk = jax.lax.top_k(logits_BTE, experts.per_token)
    if experts.normalised:
        weight_BTk = jax.nn.softmax(best_BTk, axis=-1)
    else:
        weight_BTk = jnp.exp(best_BTk - jax.nn.logsumexp(logits_BTE, axis=-1, keepdims=True))
    return expert_BTk, weight_BTk if experts.scale == 1.0 else weight_BTk * experts.scale


def _choose_by_sigmoid(logits_BTE: Array, correction_E: Array | None, experts: Experts) -> tuple[Array, Array]:
    """Choose by corrected sigmoids within the best groups, weigh by the sigmoids (arXiv 2412.19437, section 2.1.2)."""
    score_BTE = jax.nn.sigmoid(logits_BTE)
    choice_BTE = score_BTE if correction_E is None else score_BTE + correction_E
    if experts.groups_used < experts.groups:
        choice_BTE = _in_best_groups(choice_BTE, experts)
    _, expert_BTk = jax.lax.top_k(choice_BTE, experts.per_token)
    weight_BTk = jnp.take_along_axis(score_BTE, expert_BTk, axis=-1)
    if experts.normalised:
        weight_BTk = weight_BTk / (jnp.sum(weight_BTk, axis=-1, keepdims=True) + 1e-20)
    return expert_BTk, weight_BTk * experts.scale


def _in_best_groups(choice_BTE: Array, experts: Experts) -> Array:
    """Return the scores, minus infinity outside the groups whose two best experts sum to most."""
    in_groups = choice_BTE.reshape(*choice_BTE.shape[:-1], experts.groups, -1)
    of_group = jnp.sum(jax.lax.top_k(in_groups, min(2, in_groups.shape[-1]))[0], axis=-1)
    _, best = jax.lax.top_k(of_group, experts.groups_used)
    is_best = jnp.any(jax.nn.one_hot(best, experts.groups, dtype=bool), axis=-2)
    return jnp.where(is_best[..., None], in_groups, -jnp.inf).reshape(choice_BTE.shape)


class ExpertMLP(nnx.Module):
    """Router and experts, and the expert that all tokens use, if there is one."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, adapters: Adapters | None = None) -> None:
        assert config.experts is not None
        self.experts, self.activation = config.experts, config.activation
        D, of = config.d_model, parameters.experts(config)
        self.router = weight(rngs, of["router"], D**-0.5)
        self.down = weight(rngs, of["down"], (config.experts.d_ff * 2 * config.layers) ** -0.5)
        if config.experts.biased:
            self.gate_up = weight(rngs, of["gate_up"], D**-0.5)
            self.router_bias, self.gate_up_bias = zeros(of["router_bias"]), zeros(of["gate_up_bias"])
            self.down_bias = zeros(of["down_bias"])
        else:
            self.gate, self.up = weight(rngs, of["gate"], D**-0.5), weight(rngs, of["up"], D**-0.5)
            self.gate_lora, self.up_lora = low_rank("gate", self.gate, adapters), low_rank("up", self.up, adapters)
            self.down_lora = low_rank("down", self.down, adapters)
        self.router_lora = low_rank("router", self.router, adapters)
        self.router_correction = zeros_if(of.get(parameters.CORRECTION))
        if config.experts.shared_d_ff:
            self._init_shared(config, rngs, adapters)

    def _init_shared(self, config: ModelConfig, rngs: nnx.Rngs, adapters: Adapters | None) -> None:
        D, of = config.d_model, parameters.experts(config)
        for name in SHARED:
            std = (self.experts.shared_d_ff * 2 * config.layers) ** -0.5 if name == "shared_down" else D**-0.5
            put_matrix(self, name, of[name], std, rngs, adapters)
        if self.experts.shared_gated:
            self.shared_scale = weight(rngs, of["shared_scale"], D**-0.5)

    def __call__(self, x_BTD: Array, counts_BT: Array | None) -> tuple[Array, RouterUse | None]:
        """Return the sum of the chosen experts' results, and the router's use by tokens that count."""
        routed_BTD, use = self._routed(x_BTD, counts_BT)
        return (routed_BTD + self._shared(x_BTD) if self.experts.shared_d_ff else routed_BTD), use

    def _routed(self, x_BTD: Array, counts_BT: Array | None) -> tuple[Array, RouterUse | None]:
        B, T, D = x_BTD.shape
        read_BTD = x_BTD.astype(jnp.float32) if self.experts.sigmoid else x_BTD
        logits_BTE = product(self, "router", read_BTD).astype(jnp.float32)
        correction = None if self.router_correction is None else self.router_correction[...]
        expert_BTk, weight_BTk = choose(logits_BTE, correction, self.experts)
        use = None if counts_BT is None else _use(logits_BTE, expert_BTk, counts_BT)
        matrices = {name: getattr(self, name)[...] for name in self._matrices} | self._low_rank
        if sharding.devices() > 1:
            return over_mesh(self._mixture, x_BTD, expert_BTk, weight_BTk, matrices), use
        k = self.experts.per_token
        inputs = x_BTD.reshape(B * T, D), expert_BTk.reshape(-1), weight_BTk.reshape(B * T, k)
        return self._mixture(*inputs, matrices).reshape(B, T, D), use

    def _shared(self, x_BTD: Array) -> Array:
        """Return the result of the expert that all tokens use."""
        gate_BTF = ACTIVATIONS[self.activation](product(self, "shared_gate", x_BTD))
        out_BTD = product(self, "shared_down", gate_BTF * product(self, "shared_up", x_BTD))
        if not self.experts.shared_gated:
            return out_BTD
        return jax.nn.sigmoid(product(self, "shared_scale", x_BTD)) * out_BTD

    @property
    def _low_rank(self) -> dict[str, Array]:
        """Return both parts of each adapter of the experts, as `gate.a`; scaled."""
        parts: dict[str, Array] = {}
        for name in PLAIN:
            adapter = getattr(self, f"{name}_lora", None)
            if adapter is not None:
                parts |= {f"{name}.a": adapter.a[...] * adapter.scale, f"{name}.b": adapter.b[...]}
        return parts

    @property
    def _matrices(self) -> tuple[str, ...]:
        return BIASED if self.experts.biased else PLAIN

    def _mixture(self, x_MD: Array, expert_Mk: Array, weight_Mk: Array, matrices: Matrices) -> Array:
        """Return the contribution of the experts with these matrices."""
        M, k = weight_Mk.shape
        count = matrices["down"].shape[0]
        is_part = count != self.experts.count
        if is_part:  # tokens of other devices' experts go behind all others
            expert_Mk = jnp.where((expert_Mk >= 0) & (expert_Mk < count), expert_Mk, count)
        order = jnp.argsort(expert_Mk, stable=True)
        expert_R = expert_Mk[order]
        sizes_E = jnp.bincount(expert_Mk, length=count + is_part)[:count].astype(jnp.int32)
        x_RD = x_MD[order // k]
        if self.experts.weighs_inputs:
            x_RD = x_RD * weight_Mk.reshape(-1)[order][:, None].astype(x_RD.dtype)
        rows_RD = self._by_expert(x_RD, expert_R, sizes_E, matrices)
        if is_part:
            rows_RD = jnp.where(expert_R[:, None] < count, rows_RD, 0)
        out_MkD = rows_RD[jnp.argsort(order)].reshape(M, k, -1)
        if self.experts.weighs_inputs:
            return jnp.sum(out_MkD, axis=1)
        return jnp.einsum("mkd,mk->md", out_MkD, weight_Mk.astype(out_MkD.dtype))

    def _by_expert(self, x_RD: Array, expert_R: Array, sizes_E: Array, matrices: Matrices) -> Array:
        """Pass rows sorted by expert through their experts."""

        def plain(x: Array, name: str) -> Array:
            return jax.lax.ragged_dot(x, matrices[name].astype(x.dtype), sizes_E)

        def grouped(x: Array, name: str) -> Array:
            if f"{name}.a" not in matrices:
                return plain(x, name)
            return plain(x, name) + plain(plain(x, f"{name}.a"), f"{name}.b")

        def bias(name: str) -> Array:
            return matrices[name].astype(x_RD.dtype)[expert_R]

        if not self.experts.biased:
            gate_RF = ACTIVATIONS[self.activation](grouped(x_RD, "gate"))
            return grouped(gate_RF * grouped(x_RD, "up"), "down")
        both = grouped(x_RD, "gate_up") + bias("gate_up_bias")
        # As slices of every second column, each of these took the TPU compiler minutes and gigabytes
        # (docs/findings/compilers.md).
        both_RF2 = both.reshape(both.shape[0], -1, 2)
        hidden_RF = _clamped_unit(both_RF2[..., 0], both_RF2[..., 1], self.experts)
        return grouped(hidden_RF, "down") + bias("down_bias")


def _clamped_unit(gate: Array, up: Array, experts: Experts) -> Array:
    """Return gpt-oss's gated unit: (up + 1) · gate · sigmoid(slope · gate), both clamped."""
    gate = jnp.minimum(gate, experts.clamp)
    up = jnp.clip(up, -experts.clamp, experts.clamp)
    return (up + 1) * gate * jax.nn.sigmoid(experts.slope * gate)


def _use(logits_BTE: Array, expert_BTk: Array, counts_BT: Array) -> RouterUse:
    E = logits_BTE.shape[-1]
    counts = counts_BT.astype(jnp.float32)
    chosen_BTE = jnp.sum(jax.nn.one_hot(expert_BTk, E), axis=2)

    def sums(x_BTE: Array) -> Array:
        return jnp.einsum("bte,bt->e", x_BTE, counts)

    return RouterUse(sums(chosen_BTE), sums(jax.nn.softmax(logits_BTE, axis=-1)), jnp.sum(counts))
