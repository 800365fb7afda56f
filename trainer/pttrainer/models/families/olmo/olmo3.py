"""OLMo 3: OLMo 2 with three local layers per global one; a scaling of positions acts on global layers."""

from typing import Any

from pttrainer.models.config import ModelConfig, Rope
from pttrainer.models.families.config_json import common_fields, rope_fields
from pttrainer.models.families.config_json.fields import Fields
from pttrainer.models.families.olmo.olmo2 import DEFAULTS, NORMS

FAMILY = "olmo3"
ARCHITECTURE = "Olmo3ForCausalLM"
THETA = 500_000.0


def read(fields: Fields) -> ModelConfig:
    """Return the config in a `config.json`."""
    common = common_fields.read(fields, **DEFAULTS)
    # Of another one, readers disagree whether it is local layers' too; `rope_parameters` says.
    theta = fields.choice("rope_theta", (THETA,), THETA)
    rope, local_rope = rope_fields.read_by_kind(fields, theta, theta, common["max_positions"])
    bias = fields.flag("attention_bias", False)
    return ModelConfig(
        family=FAMILY,
        **common,
        **NORMS,
        rope=rope,
        local_rope=local_rope,
        activation=common_fields.activation(fields, "hidden_act", "silu"),
        qkv_bias=bias,
        o_bias=bias,
        window=fields.nullable("sliding_window", fields.integer, 4096),
        local_layers=common_fields.local_layers(fields, common["layers"], lambda layer: (layer + 1) % 4 != 0),
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    assert config.local_rope is not None
    is_old = config.local_rope == Rope(THETA) and config.rope.theta == THETA
    ropes = rope_fields.write(config.rope) if is_old else rope_fields.write_by_kind(config.rope, config.local_rope)
    return {
        **common_fields.write(config, ARCHITECTURE, FAMILY),
        **ropes,
        "hidden_act": common_fields.written_activation(config),
        "attention_bias": config.qkv_bias,
        "sliding_window": config.window,
        "layer_types": common_fields.layer_types(config),
    }
