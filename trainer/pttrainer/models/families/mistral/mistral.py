"""Mistral: a plain decoder whose layers all use a window (arXiv 2310.06825); later releases attend globally."""

from typing import Any

from pttrainer.models.config import Experts, ModelConfig
from pttrainer.models.families.config_json import common_fields, rope_fields
from pttrainer.models.families.config_json.fields import Fields

FAMILY = "mistral"
ARCHITECTURE = "MistralForCausalLM"


def read(
    fields: Fields,
    *,
    family: str = FAMILY,
    norm_eps: float = 1e-6,
    theta: float = 10_000.0,
    usual_window: int | None = 4096,
    experts: Experts | None = None,
) -> ModelConfig:
    """Return the config in a `config.json`. Named are the family, its defaults, and experts in place of the MLPs."""
    common = common_fields.read(
        fields, vocab_size=32_000, kv_heads=8, max_positions=131_072, bos=(1,), eos=(2,), norm_eps=norm_eps
    )
    window = fields.nullable("sliding_window", fields.integer, usual_window)
    return ModelConfig(
        family=family,
        **common,
        rope=rope_fields.read(fields, theta, common["max_positions"]),
        activation=common_fields.activation(fields, "hidden_act", "silu"),
        window=window,
        local_layers=(True,) * common["layers"] if window else (),
        experts=experts,
    )


def write(config: ModelConfig, architecture: str = ARCHITECTURE) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    return {
        **common_fields.write(config, architecture, config.family),
        **rope_fields.write(config.rope),
        "hidden_act": common_fields.written_activation(config),
        "sliding_window": config.window,
    }
