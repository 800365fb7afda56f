"""Mistral: a plain decoder whose layers all use a window (arXiv 2310.06825); later releases attend globally."""

from typing import Any

from pttrainer.models.config import ModelConfig
from pttrainer.models.families.config_json import common_fields, rope_fields
from pttrainer.models.families.config_json.fields import Fields

FAMILY = "mistral"
ARCHITECTURE = "MistralForCausalLM"


def read(fields: Fields) -> ModelConfig:
    """Return the config in a `config.json`."""
    common = common_fields.read(fields, vocab_size=32_000, kv_heads=8, max_positions=131_072, bos=(1,), eos=(2,))
    window = fields.nullable("sliding_window", fields.integer, 4096)
    return ModelConfig(
        family=FAMILY,
        **common,
        rope=rope_fields.read(fields, 10_000.0, common["max_positions"]),
        activation=common_fields.activation(fields, "hidden_act", "silu"),
        window=window,
        local_layers=(True,) * common["layers"] if window else (),
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    return {
        **common_fields.write(config, ARCHITECTURE, FAMILY),
        **rope_fields.write(config.rope),
        "hidden_act": common_fields.written_activation(config),
        "sliding_window": config.window,
    }
