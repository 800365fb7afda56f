"""Qwen 3: a norm on each query and key head (arXiv 2505.09388)."""

from __future__ import annotations

from typing import Any

from pttrainer.models.config import ModelConfig
from pttrainer.models.families import rotary, sizes
from pttrainer.models.families.qwen2 import read_windows, write_windows
from pttrainer.models.fields import Fields

FAMILY = "qwen3"
ARCHITECTURE = "Qwen3ForCausalLM"


def read(fields: Fields) -> ModelConfig:
    """The config in a `config.json`."""
    common = sizes.read(fields, vocab_size=151_936, head_dim=128, max_positions=32_768)
    bias = fields.flag("attention_bias", False)
    return ModelConfig(
        family=FAMILY,
        **common,
        **read_windows(fields, common["layers"]),
        rope=rotary.read(fields, 10_000.0, common["max_positions"]),
        activation=sizes.activation(fields, "hidden_act", "silu"),
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=True,
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """The `config.json` of this model."""
    return {
        **sizes.write(config, ARCHITECTURE, FAMILY),
        **rotary.write(config.rope),
        **write_windows(config),
        "hidden_act": sizes.written_activation(config),
        "attention_bias": config.qkv_bias,
    }
