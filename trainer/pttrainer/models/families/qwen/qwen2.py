"""Qwen 2 and 2.5: biases on queries, keys and values (arXiv 2412.15115)."""

from typing import Any

from pttrainer.models.config import ModelConfig
from pttrainer.models.families.config_json import common_fields, rope_fields
from pttrainer.models.families.config_json.fields import Fields

FAMILY = "qwen2"
ARCHITECTURE = "Qwen2ForCausalLM"


def read(fields: Fields) -> ModelConfig:
    """Return the config in a `config.json`."""
    common = common_fields.read(fields, vocab_size=151_936, max_positions=32_768)
    return ModelConfig(
        family=FAMILY,
        **common,
        **read_windows(fields, common["layers"]),
        rope=rope_fields.read(fields, 10_000.0, common["max_positions"]),
        activation=common_fields.activation(fields, "hidden_act", "silu"),
        qkv_bias=True,
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    return {
        **common_fields.write(config, ARCHITECTURE, FAMILY),
        **rope_fields.write(config.rope),
        **write_windows(config),
        "hidden_act": common_fields.written_activation(config),
    }


def read_windows(fields: Fields, layers: int) -> dict[str, Any]:
    """Return the windows; Qwen's files name a window and a layer even if `use_sliding_window` turns both off."""
    is_used = fields.flag("use_sliding_window", False)
    window = fields.nullable("sliding_window", fields.integer, 4096)
    first = fields.nullable("max_window_layers", lambda key: fields.number(key), 28.0)
    local = common_fields.local_layers(
        fields, layers, lambda layer: is_used and window is not None and layer >= (first or 0)
    )
    return {"window": window if is_used else None, "local_layers": local}


def write_windows(config: ModelConfig) -> dict[str, Any]:
    """Return the keys that `read_windows` reads."""
    first = config.local_layers.index(True) if config.local_layers else config.layers
    return {
        "use_sliding_window": bool(config.local_layers),
        "sliding_window": config.window,
        "max_window_layers": first,
        "layer_types": common_fields.layer_types(config),
    }
