"""The feed-forward part of a layer without experts.

Letters: B rows, T tokens, D model, F feed-forward.
"""

from collections.abc import Callable

import jax
from flax import nnx
from jax import Array

from pttrainer.models.config import ModelConfig
from pttrainer.models.layers.linear import Drop, product, put_matrix, zeros_if
from pttrainer.models.lora.adapters import Adapters
from pttrainer.models.shapes import parameters

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
}


class GatedMLP(nnx.Module):
    """activation(x·gate) · (x·up) · down (arXiv 2002.05202)."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, adapters: Adapters | None = None) -> None:
        D, of = config.d_model, parameters.gated_mlp(config)
        self.activation = config.activation
        for name in ("gate", "up", "down"):
            std = (config.d_ff * 2 * config.layers) ** -0.5 if name == "down" else D**-0.5
            put_matrix(self, name, of[name], std, rngs, adapters)
        self.gate_bias, self.up_bias = zeros_if(of.get("gate_bias")), zeros_if(of.get("up_bias"))
        self.down_bias = zeros_if(of.get("down_bias"))

    def __call__(self, x_BTD: Array, drop: Drop | None = None) -> Array:
        """Return activation(x·gate) · (x·up) · down."""
        gate_BTF = ACTIVATIONS[self.activation](product(self, "gate", x_BTD, drop))
        hidden_BTF = gate_BTF * product(self, "up", x_BTD, drop)
        return product(self, "down", hidden_BTF, drop)
