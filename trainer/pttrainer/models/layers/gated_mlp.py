"""The feed-forward part of a layer without experts.

Letters: B rows, T tokens, D model, F feed-forward.
"""

from collections.abc import Callable

import jax
from flax import nnx
from jax import Array

from pttrainer.models.config import ModelConfig
from pttrainer.models.layers.linear import Drop, low_rank, project, weight, zeros_if
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
        self.gate = weight(rngs, of["gate"], D**-0.5)
        self.up = weight(rngs, of["up"], D**-0.5)
        self.down = weight(rngs, of["down"], (config.d_ff * 2 * config.layers) ** -0.5)
        self.gate_bias, self.up_bias = zeros_if(of.get("gate_bias")), zeros_if(of.get("up_bias"))
        self.down_bias = zeros_if(of.get("down_bias"))
        self.gate_lora, self.up_lora = low_rank("gate", self.gate, adapters), low_rank("up", self.up, adapters)
        self.down_lora = low_rank("down", self.down, adapters)

    def __call__(self, x_BTD: Array, drop: Drop | None = None) -> Array:
        """Return activation(x·gate) · (x·up) · down."""
        gate_BTF = ACTIVATIONS[self.activation](project(x_BTD, self.gate, self.gate_bias, self.gate_lora, drop))
        hidden_BTF = gate_BTF * project(x_BTD, self.up, self.up_bias, self.up_lora, drop)
        return project(hidden_BTF, self.down, self.down_bias, self.down_lora, drop)
