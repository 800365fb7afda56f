"""Gemma 2: every other layer local, norms before and behind, soft caps on scores and logits (arXiv 2408.00118)."""

from typing import Any

from pttrainer.models.config import ModelConfig
from pttrainer.models.families.config_json import common_fields, rope_fields
from pttrainer.models.families.config_json.fields import Fields

FAMILY = "gemma2"
ARCHITECTURE = "Gemma2ForCausalLM"


def read(fields: Fields) -> ModelConfig:
    """Return the config in a `config.json`."""
    common = read_sizes(fields, vocab_size=256_000, max_positions=8192)
    return ModelConfig(
        family=FAMILY,
        **common,
        rope=rope_fields.read(fields, 10_000.0, common["max_positions"]),
        local_layers=common_fields.local_layers(fields, common["layers"], lambda layer: layer % 2 == 0),
        attention_softcap=fields.nullable("attn_logit_softcapping", fields.number, 50.0),
        final_softcap=fields.nullable("final_logit_softcapping", fields.number, 30.0),
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    return {
        **write_sizes(config, ARCHITECTURE, FAMILY),
        **rope_fields.write(config.rope),
        "attn_logit_softcapping": config.attention_softcap,
        "final_logit_softcapping": config.final_softcap,
    }


def read_sizes(fields: Fields, vocab_size: int, max_positions: int) -> dict[str, Any]:
    """Return the sizes in the keys that Gemma 2 and 3 share."""
    common = common_fields.read(
        fields, head_dim=256, heads=8, kv_heads=4, vocab_size=vocab_size, max_positions=max_positions, tied=True,
        bos=(2,), eos=(1,), pad=(0,),
    )  # fmt: skip
    bias, window = fields.flag("attention_bias", False), fields.nullable("sliding_window", fields.integer, 4096)
    fields.choice("sliding_window_size", (window,), window)  # of early files, beside the key that counts
    fields.choice("use_bidirectional_attention", (False,), False)
    # Early files have this key too; `hidden_activation` is the one that counts.
    fields.choice("hidden_act", ("gelu_pytorch_tanh", "gelu"), "gelu_pytorch_tanh")
    return {
        **common,
        "activation": common_fields.activation(fields, "hidden_activation", "gelu_pytorch_tanh"),
        "qkv_bias": bias,
        "o_bias": bias,
        "window": window,
        "zero_centred_norms": True,
        "post_norms": True,
        "embedding_scale": common["d_model"] ** 0.5,
        "query_scale": fields.number("query_pre_attn_scalar", 256) ** -0.5,
    }


def write_sizes(config: ModelConfig, architecture: str, model_type: str) -> dict[str, Any]:
    """Return the keys that `read_sizes` reads, and the layers' types."""
    return {
        **common_fields.write(config, architecture, model_type),
        "hidden_activation": common_fields.written_activation(config),
        "attention_bias": config.qkv_bias,
        "sliding_window": config.window,
        "layer_types": common_fields.layer_types(config),
        "query_pre_attn_scalar": _scalar(config),
    }


def _scalar(config: ModelConfig) -> int | float:
    """Return the number whose inverse root is the scale: an integer in every released file."""
    scalar = config.scale**-2
    return round(scalar) if abs(scalar - round(scalar)) < 1e-6 * scalar else scalar
