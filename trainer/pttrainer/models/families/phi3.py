"""Phi 3 and 4: a plain decoder whose files hold queries, keys and values, and gate and up, as one matrix each."""

from typing import Any

from pttrainer.models.config import ModelConfig
from pttrainer.models.families.config_json import common_fields, rope_fields
from pttrainer.models.families.config_json.fields import Fields

FAMILY = "phi3"
ARCHITECTURE = "Phi3ForCausalLM"


def read(fields: Fields) -> ModelConfig:
    """Return the config in a `config.json`."""
    common = common_fields.read(
        fields, vocab_size=32_064, heads=32, max_positions=4096, bos=(1,), eos=(32_000,), pad=(32_000,), norm_eps=1e-5
    )
    for dropout in ("resid_pdrop", "embd_pdrop"):
        fields.choice(dropout, (0.0,), 0.0)
    for bias in ("attention_bias", "mlp_bias", "lm_head_bias"):
        fields.choice(bias, (False,), False)
    # Of models that are no plain decoders; released files have them as 1.
    for unused in ("full_attn_mod", "interpolate_factor"):
        fields.choice(unused, (1,), 1)
    fields.value("original_max_position_embeddings", None)
    window = fields.nullable("sliding_window", fields.integer, None)
    # transformers takes any other for Phi's own, whose factors it then misses.
    scaling = fields.inside("rope_scaling" if "rope_scaling" in fields else "rope_parameters")
    scaling.choice("rope_type" if "rope_type" in scaling else "type", ("default",), "default")
    return ModelConfig(
        family=FAMILY,
        **common,
        rope=rope_fields.read(fields, 10_000.0, common["max_positions"], share=1.0),
        activation=common_fields.activation(fields, "hidden_act", "silu"),
        window=window,
        local_layers=(True,) * common["layers"] if window else (),
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    return {
        **common_fields.write(config, ARCHITECTURE, FAMILY),
        **rope_fields.write(config.rope),
        "partial_rotary_factor": config.rope.share,
        "hidden_act": common_fields.written_activation(config),
        "sliding_window": config.window,
    }
