"""SmolLM 3: every fourth layer has no rotary embedding; where windows are used, those layers have them."""

from typing import Any

from pttrainer.models.config import ModelConfig, Rope
from pttrainer.models.families.config_json import common_fields, rope_fields
from pttrainer.models.families.config_json.fields import Fields

FAMILY = "smollm3"
ARCHITECTURE = "SmolLM3ForCausalLM"


def read(fields: Fields) -> ModelConfig:
    """Return the config in a `config.json`."""
    plain = common_fields.read_plain(
        fields, vocab_size=128_256, heads=16, kv_heads=4, max_positions=32_768, tied=True, theta=2_000_000.0,
        bos=(128_000,), eos=(128_001,), pad=(128_004,),
    )  # fmt: skip
    still = still_layers(fields, plain["layers"])
    # Without effect where `layer_types` says which layers have windows.
    fields.value("max_window_layers", None)
    window = fields.nullable("sliding_window", fields.integer, None)
    window = window if fields.flag("use_sliding_window", False) else None
    local = common_fields.local_layers(fields, plain["layers"], lambda layer: window is not None and still[layer])
    if local and local != still:
        fields.refuse("layer_types", "sliding_attention for the layers without rotary embedding, or for none")
    return ModelConfig(
        family=FAMILY,
        **plain,
        mlp_bias=fields.flag("mlp_bias", False),
        window=window if local else None,
        local_layers=still if any(still) else (),
        local_rope=Rope(plain["rope"].theta, share=0.0),
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    written = rope_fields.LOCAL if config.window is not None else rope_fields.GLOBAL
    still = [config.is_local(layer) for layer in range(config.layers)]
    return {
        **common_fields.write_plain(config, ARCHITECTURE),
        "mlp_bias": config.mlp_bias,
        "no_rope_layers": [int(not is_still) for is_still in still],
        "use_sliding_window": config.window is not None,
        "sliding_window": config.window,
        "layer_types": [written if is_still else rope_fields.GLOBAL for is_still in still],
    }


def still_layers(fields: Fields, layers: int, *, may_be_empty: bool = False) -> tuple[bool, ...]:
    """Return which layers have no rotary embedding; in `no_rope_layers` these are 0, and a list may be too long.

    may_be_empty: an empty list says as little as none.
    """
    interval = fields.integer("no_rope_layer_interval", 4)
    by_interval = [int((layer + 1) % interval != 0) for layer in range(layers)]
    listed = fields.value("no_rope_layers", by_interval)
    listed = by_interval if may_be_empty and listed == [] else listed
    if not isinstance(listed, list) or len(listed) < layers or not set(listed) <= {0, 1}:
        fields.refuse("no_rope_layers", f"a list of 0 and 1, at least {layers} of them")
    return tuple(not has_rope for has_rope in listed[:layers])
