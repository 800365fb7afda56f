"""A mixture of experts in place of the MLP: every token by its best k experts, none dropped.

Letters: B rows, T tokens, M = B·T, D model, F feed-forward of an expert, E experts, k experts per token.

Tokens are sorted by expert and the products are grouped (`grouped_product`), so the work is that of k experts per
token whatever the router (`router`) does, and no capacity limit drops a token.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from pttrainer.models.config import Experts, ModelConfig
from pttrainer.models.layers.gated_mlp import ACTIVATIONS
from pttrainer.models.layers.linear import low_rank, product, put_matrix, weight, zeros, zeros_if
from pttrainer.models.layers.mixture.dispatch import combine, dispatch
from pttrainer.models.layers.mixture.expert_parallel import GATHERED_OVER, Matrices, over_mesh
from pttrainer.models.layers.mixture.grouped_product import grouped_product, grouped_products
from pttrainer.models.layers.mixture.router import Routing, choose, use_of
from pttrainer.models.layers.norm import RMSNorm, unit_rms
from pttrainer.models.lora.adapters import Adapters
from pttrainer.models.shapes import parameters
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.distributed.logical_axes import Axes
from pttrainer.runtime.tpu_tiles import fills_rows

PLAIN = ("gate", "up", "down")
BIASES = tuple(f"{name}_bias" for name in PLAIN)
"""An expert's weights."""
SHARED = ("shared_gate", "shared_up", "shared_down")
"""Those of the expert that all tokens use."""


class ExpertMLP(nnx.Module):
    """Router and experts, and the expert that all tokens use, if there is one."""

    router_scale: nnx.Param[Array]
    expert_scale: nnx.Param[Array]
    routed_norm: RMSNorm
    routed_post_norm: RMSNorm
    shared_post_norm: RMSNorm
    is_split_as_trained = False
    """Whether the mesh in context splits the experts' matrices as their logical axes say."""
    in_sampler = False
    """Whether they are a sampler's (`parameters.decoding_axes`)."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, adapters: Adapters | None = None) -> None:
        assert config.experts is not None
        self.experts, self.activation, self.eps = config.experts, config.activation, config.norm_eps
        D, of = config.d_model, parameters.experts(config)
        self.router = weight(rngs, of["router"], D**-0.5)
        self.down = weight(rngs, of["down"], (config.experts.d_ff * 2 * config.layers) ** -0.5)
        self.gate, self.up = weight(rngs, of["gate"], D**-0.5), weight(rngs, of["up"], D**-0.5)
        if config.experts.biased:
            for name in ("router_bias", *BIASES):
                setattr(self, name, zeros(of[name]))
        else:
            self.gate_lora, self.up_lora = low_rank("gate", self.gate, adapters), low_rank("up", self.up, adapters)
            self.down_lora = low_rank("down", self.down, adapters)
        self.router_lora = low_rank("router", self.router, adapters)
        self.router_correction = zeros_if(of.get(parameters.CORRECTION))
        if config.experts.shared_d_ff:
            self._init_shared(config, rngs, adapters)
        if config.experts.beside_mlp:
            self._init_beside_mlp(config)

    def _init_beside_mlp(self, config: ModelConfig) -> None:
        of = parameters.experts(config)
        for name in ("router_scale", "expert_scale"):
            setattr(self, name, nnx.Param(jnp.ones(of[name].shape), axes=of[name].axes))
        for name in parameters.EXPERT_NORMS:
            setattr(self, name, RMSNorm(parameters.norm(config), config))

    def _init_shared(self, config: ModelConfig, rngs: nnx.Rngs, adapters: Adapters | None) -> None:
        D, of = config.d_model, parameters.experts(config)
        for name in SHARED:
            std = (self.experts.shared_d_ff * 2 * config.layers) ** -0.5 if name == "shared_down" else D**-0.5
            put_matrix(self, name, of[name], std, rngs, adapters)
        if self.experts.shared_gated:
            self.shared_scale = weight(rngs, of["shared_scale"], D**-0.5)

    def __call__(
        self, x_BTD: Array, counts_BT: Array | None, stream_BTD: Array, given_BTk: Array | None = None
    ) -> tuple[Array, Routing]:
        """Return the sum of the chosen experts' results, which they are, and the router's use by tokens that count.

        stream_BTD: what the layer's norm made x_BTD of, for experts with norms of their own. given_BTk: as in `choose`.
        """
        if self.experts.beside_mlp:
            routed_BTD, routing = self._routed(
                self.routed_norm(stream_BTD), counts_BT, self._for_router(stream_BTD), given_BTk
            )
            return self.shared_post_norm(self._shared(x_BTD)) + self.routed_post_norm(routed_BTD), routing
        read_BTD = x_BTD.astype(jnp.float32) if self.experts.sigmoid else x_BTD
        routed_BTD, routing = self._routed(x_BTD, counts_BT, read_BTD, given_BTk)
        return (routed_BTD + self._shared(x_BTD) if self.experts.shared_d_ff else routed_BTD), routing

    def _for_router(self, x_BTD: Array) -> Array:
        """Return the stream as the router of experts beside an MLP reads it."""
        scale_D = self.router_scale[...].astype(x_BTD.dtype) * jnp.asarray(x_BTD.shape[-1] ** -0.5, x_BTD.dtype)
        return unit_rms(x_BTD, self.eps) * scale_D

    def _routed(
        self, x_BTD: Array, counts_BT: Array | None, read_BTD: Array, given_BTk: Array | None
    ) -> tuple[Array, Routing]:
        """Return the experts' results; read_BTD: what the router reads."""
        B, T, D = x_BTD.shape
        logits_BTE = product(self, "router", read_BTD).astype(jnp.float32)
        correction = None if self.router_correction is None else self.router_correction[...]
        choice = choose(logits_BTE, correction, self.experts, given_BTk)
        expert_BTk, weight_BTk, _ = choice
        if self.experts.beside_mlp:
            weight_BTk = weight_BTk * self.expert_scale[...].astype(jnp.float32)[expert_BTk]
        routing = Routing(expert_BTk, None if counts_BT is None else use_of(logits_BTE, choice, counts_BT))
        matrices = {name: getattr(self, name)[...] for name in self._matrices} | self._low_rank
        if sharding.devices() > 1:
            of_experts = sharding.weight_split(*self._down(D))[0]
            over = ("expert", "tensor") if "tensor" in of_experts else ("expert",)
            gathered = self._gathered(D, holds_whole=not set(GATHERED_OVER).isdisjoint(of_experts))
            return over_mesh(self._mixture, x_BTD, expert_BTk, weight_BTk, matrices, gathered, over=over), routing
        k = self.experts.per_token
        inputs = x_BTD.reshape(B * T, D), expert_BTk.reshape(-1), weight_BTk.reshape(B * T, k)
        return self._mixture(*inputs, matrices).reshape(B, T, D), routing

    def _gathered(self, D: int, *, holds_whole: bool) -> dict[str, int]:
        """Return the axis along which each matrix is split that `over_mesh` is to gather.

        Whole experts, if devices hold such, and parts of the model's axis that fill rows of tiles.
        """
        parts = sharding.parts("expert_embed")
        if not self.is_split_as_trained or parts == 1:
            return {}
        if holds_whole:
            return dict.fromkeys(PLAIN, 0)
        return {"gate": 1, "up": 1, "down": 2} if fills_rows(D, parts) else {}

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
        return PLAIN + BIASES if self.experts.biased else PLAIN

    def _mixture(self, x_MD: Array, expert_Mk: Array, weight_Mk: Array, matrices: Matrices) -> Array:
        """Return the contribution of the experts with these matrices."""
        k = weight_Mk.shape[1]
        count = matrices["down"].shape[0]
        is_part = count != self.experts.count
        if is_part:  # tokens of other devices' experts go behind all others
            expert_Mk = jnp.where((expert_Mk >= 0) & (expert_Mk < count), expert_Mk, count)
        order_R = jnp.argsort(expert_Mk, stable=True)
        expert_R = expert_Mk[order_R]
        sizes_E = jnp.bincount(expert_Mk, length=count + is_part)[:count].astype(jnp.int32)
        weight_R, is_own_R = weight_Mk.reshape(-1)[order_R].astype(x_MD.dtype), None
        if is_part:  # what is computed for the others is undefined, and so are its gradients
            is_own_R = expert_R < count
            weight_R = jnp.where(is_own_R, weight_R, 0)
        rows_RD = self._by_expert(dispatch(x_MD, order_R, k, is_own_R), weight_R, expert_R, sizes_E, matrices)
        return combine(rows_RD, order_R, k, is_own_R)

    def _by_expert(self, x_RD: Array, weight_R: Array, expert_R: Array, sizes_E: Array, matrices: Matrices) -> Array:
        """Pass rows sorted by expert through their experts, and weigh what they return.

        Rows are weighed before `down`, in a pass that is made anyway and over fewer numbers; the result is the same.
        """
        if self.experts.weighs_inputs:
            x_RD = x_RD * weight_R[:, None]

        def plain(x: Array, name: str) -> Array:
            is_turned = name == "down" and sharding.is_stored_turned(*self._down(x_RD.shape[1]))
            matrix_EXY = matrices[name].astype(x.dtype)
            return grouped_product(x, matrix_EXY, sizes_E, is_turned=is_turned, in_sampler=self.in_sampler)

        def adapted(out: Array, x: Array, name: str) -> Array:
            return out if f"{name}.a" not in matrices else out + plain(plain(x, f"{name}.a"), f"{name}.b")

        def biases(owner_RE: Array, name: str) -> Array:
            # As a product: TPUs read rows one by one, and sum the gradient of what was read in the rows' own numbers.
            return jnp.matmul(owner_RE, matrices[f"{name}_bias"].astype(x_RD.dtype), precision="highest")

        gate_and_up = tuple(matrices[name].astype(x_RD.dtype) for name in ("gate", "up"))
        is_turned = sharding.is_stored_turned(*self._gate(x_RD.shape[1]))
        both = grouped_products(x_RD, gate_and_up, sizes_E, is_turned=is_turned, in_sampler=self.in_sampler)
        gate_RF, up_RF = (adapted(out, x_RD, name) for out, name in zip(both, ("gate", "up"), strict=True))
        if self.experts.biased:
            owner_RE = jax.nn.one_hot(expert_R, matrices["down"].shape[0], dtype=x_RD.dtype)
            is_own_R1 = expert_R[:, None] < owner_RE.shape[1]  # or undefined gradients would reach the biases
            gate_RF = jnp.where(is_own_R1, gate_RF + biases(owner_RE, "gate"), 0)
            up_RF = jnp.where(is_own_R1, up_RF + biases(owner_RE, "up"), 0)
            hidden_RF = _clamped_unit(gate_RF, up_RF, self.experts) * weight_R[:, None]
            return plain(hidden_RF, "down") + biases(owner_RE * weight_R[:, None], "down")
        hidden_RF = ACTIVATIONS[self.activation](gate_RF) * up_RF
        if not self.experts.weighs_inputs:
            hidden_RF = hidden_RF * weight_R[:, None]
        return adapted(plain(hidden_RF, "down"), hidden_RF, "down")

    def _gate(self, D: int) -> tuple[Axes, tuple[int, ...]]:
        """Return the logical axes and the shape of a layer's `gate`, and of `up`."""
        return self._axes("expert", "expert_embed", "mlp"), (self.experts.count, D, self.experts.d_ff)

    def _down(self, D: int) -> tuple[Axes, tuple[int, ...]]:
        return self._axes("expert", "mlp", "expert_embed"), (self.experts.count, self.experts.d_ff, D)

    def _axes(self, *axes: str) -> Axes:
        return parameters.decoding_axes(axes) if self.in_sampler else axes


def _clamped_unit(gate: Array, up: Array, experts: Experts) -> Array:
    """Return gpt-oss's gated unit: (up + 1) · gate · sigmoid(slope · gate), both clamped."""
    gate = jnp.minimum(gate, experts.clamp)
    up = jnp.clip(up, -experts.clamp, experts.clamp)
    return (up + 1) * gate * jax.nn.sigmoid(experts.slope * gate)
