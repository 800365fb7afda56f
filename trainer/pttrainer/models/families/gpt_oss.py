"""gpt-oss: experts with a clamped gate and biases, attention sinks, every other layer local, YaRN."""

from typing import Any

from pttrainer.models.config import Experts, ModelConfig
from pttrainer.models.families.config_json import common_fields, rope_fields
from pttrainer.models.families.config_json.fields import Fields

FAMILY = "gpt_oss"
ARCHITECTURE = "GptOssForCausalLM"

YARN = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
"""Meaning of a file without any rotary parameters."""


def read(fields: Fields) -> ModelConfig:
    """Return the config in a `config.json`."""
    common = common_fields.read(
        fields, vocab_size=201_088, head_dim=64, kv_heads=8, max_positions=131_072, norm_eps=1e-5
    )
    bias = fields.flag("attention_bias", True)
    # The gate has its own formula, whatever this says.
    fields.choice("hidden_act", ("silu",), "silu")
    # `experts_per_token` repeats it in released files.
    fields.value("experts_per_token", None)
    fields.default("rope_scaling", YARN, unless="rope_parameters")
    return ModelConfig(
        family=FAMILY,
        **common,
        rope=rope_fields.read(fields, 150_000.0, common["max_positions"]),
        qkv_bias=bias,
        o_bias=bias,
        sinks=True,
        window=fields.nullable("sliding_window", fields.integer, 128),
        local_layers=common_fields.local_layers(fields, common["layers"], lambda layer: layer % 2 == 0),
        experts=Experts(
            count=fields.integer("num_local_experts" if "num_local_experts" in fields else "num_experts", 128),
            per_token=fields.integer("num_experts_per_tok", 4),
            d_ff=common["d_ff"],
            biased=True,
            clamp=fields.number("swiglu_limit", 7.0),
            slope=fields.number("swiglu_alpha", 1.702),
            balance_coefficient=common_fields.read_balance(fields),
        ),
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    assert config.experts is not None
    return {
        **common_fields.write(config, ARCHITECTURE, FAMILY),
        "rope_theta": config.rope.theta,
        # Absent, it would mean YARN.
        "rope_scaling": rope_fields.write_scaling(config.rope.scaling) or {"rope_type": "default"},
        **common_fields.write_balance(config.experts),
        "hidden_act": "silu",
        "attention_bias": config.qkv_bias,
        "sliding_window": config.window,
        "layer_types": common_fields.layer_types(config),
        "num_local_experts": config.experts.count,
        "num_experts_per_tok": config.experts.per_token,
        "swiglu_limit": config.experts.clamp,
        "swiglu_alpha": config.experts.slope,
    }
