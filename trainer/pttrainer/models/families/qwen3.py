"""Qwen 3: a norm on each query and key head (arXiv 2505.09388)."""

from __future__ import annotations

from typing import Any

from pttrainer.models.config import ModelConfig
from pttrainer.models.families import common_fields, rope_fields
from pttrainer.models.families.config_reader import Fields
from pttrainer.models.families.qwen2 import read_windows, write_windows

FAMILY = "qwen3"
ARCHITECTURE = "Qwen3ForCausalLM"


def read(fields: Fields) -> ModelConfig:
    """Return the config in a `config.json`."""
    common = common_fields.read(fields, vocab_size=151_936, head_dim=128, max_positions=32_768)
    bias = fields.flag("attention_bias", False)
    return ModelConfig(
        family=FAMILY,
        **common,
        **read_windows(fields, common["layers"]),
        rope=rope_fields.read(fields, 10_000.0, common["max_positions"]),
        activation=common_fields.activation(fields, "hidden_act", "silu"),
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=True,
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    return {
        **common_fields.write(config, ARCHITECTURE, FAMILY),
        **rope_fields.write(config.rope),
        **write_windows(config),
        "hidden_act": common_fields.written_activation(config),
        "attention_bias": config.qkv_bias,
    }
