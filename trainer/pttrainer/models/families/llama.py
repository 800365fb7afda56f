"""Llama 3, 3.1, 3.2 and models of their shape: the plain decoder."""

from __future__ import annotations

from typing import Any

from pttrainer.models.config import ModelConfig
from pttrainer.models.families import common_fields, rope_fields
from pttrainer.models.families.config_reader import Fields

FAMILY = "llama"
ARCHITECTURE = "LlamaForCausalLM"


def read(fields: Fields) -> ModelConfig:
    """Return the config in a `config.json`."""
    common = common_fields.read(fields, vocab_size=32_000, bos=(1,), eos=(2,))
    bias = fields.flag("attention_bias", False)
    return ModelConfig(
        family=FAMILY,
        **common,
        rope=rope_fields.read(fields, 10_000.0, common["max_positions"]),
        activation=common_fields.activation(fields, "hidden_act", "silu"),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=fields.flag("mlp_bias", False),
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    return {
        **common_fields.write(config, ARCHITECTURE, FAMILY),
        **rope_fields.write(config.rope),
        "hidden_act": common_fields.written_activation(config),
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
    }
