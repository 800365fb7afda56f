"""Qwen3-Next: three layers with a gated delta rule per layer with gated attention; experts beside a shared one.

A quarter of each head turns, and norms multiply by 1 + scale. Layers that predict further tokens (`mtp.`) are left out.
"""

from typing import Any

from pttrainer.models.config import Delta, Experts, ModelConfig
from pttrainer.models.families.config_json import common_fields, rope_fields
from pttrainer.models.families.config_json.fields import Fields
from pttrainer.models.families.qwen.qwen3_moe import read_dense_layers
from pttrainer.models.families.qwen.vision import ROPE_OF_IMAGES

FAMILY = "qwen3_next"
ARCHITECTURE = "Qwen3NextForCausalLM"
LINEAR = "linear_attention"
KEYS_OF_EXPERTS = (
    "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size", "norm_topk_prob",
    "decoder_sparse_step", "mlp_only_layers", "output_router_logits", "router_aux_loss_coef",
)  # fmt: skip
"""What transformers writes of a model without experts, too."""


def read(fields: Fields) -> ModelConfig:
    """Return the config in a `config.json`."""
    common = read_layers(fields, vocab_size=151_936, kv_heads=2, d_ff=5632, by_head=True)
    experts = fields.count("num_experts", 512)
    if not experts:
        for key in KEYS_OF_EXPERTS:
            fields.value(key, None)
        return ModelConfig(family=FAMILY, **common)
    return ModelConfig(
        family=FAMILY,
        **common,
        experts=read_experts(fields, experts, 10, normalised=fields.flag("norm_topk_prob", True)),
        dense_layers=read_dense_layers(fields, common["layers"]),
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    written = write_layers(config, ARCHITECTURE)
    if config.experts is None:
        return {**written, "num_experts": 0}
    listed = [layer for layer, is_dense in enumerate(config.dense_layers) if is_dense]
    return {
        **written,
        **write_experts(config.experts),
        "norm_topk_prob": config.experts.normalised,
        "decoder_sparse_step": 1,
        "mlp_only_layers": listed,
    }


def read_layers(fields: Fields, *, vocab_size: int, kv_heads: int, d_ff: int, by_head: bool) -> dict[str, Any]:
    """Return what Qwen3-Next and Qwen 3.5 share: all but the experts. vocab_size, kv_heads, d_ff: defaults."""
    fields.default("intermediate_size", d_ff, unless="intermediate_size")
    common = common_fields.read(
        fields, vocab_size=vocab_size, head_dim=256, heads=16, kv_heads=kv_heads, max_positions=32_768
    )
    fields.choice("attention_bias", (False,), False)
    _read_released(fields)
    delta_layers = _delta_layers(fields, common["layers"])
    if any(delta_layers):  # it would be that of their convolutions, too, which are silu here
        fields.choice("hidden_act", ("silu", "swish"), "silu")
    return {
        **common,
        "rope": rope_fields.read(fields, 10_000.0, common["max_positions"], share=0.25, unread=ROPE_OF_IMAGES),
        "activation": common_fields.activation(fields, "hidden_act", "silu"),
        "qk_norm": True,
        "zero_centred_norms": True,
        "gated": True,
        "delta": Delta(
            key_heads=fields.integer("linear_num_key_heads", 16),
            value_heads=fields.integer("linear_num_value_heads", 32),
            key_dim=fields.integer("linear_key_head_dim", 128),
            value_dim=fields.integer("linear_value_head_dim", 128),
            width=fields.integer("linear_conv_kernel_dim", 4),
            by_head=by_head,
        ),
        "delta_layers": delta_layers,
    }


def write_layers(config: ModelConfig, architecture: str) -> dict[str, Any]:
    """Return the keys that `read_layers` reads."""
    of = config.delta
    assert of is not None
    return {
        **common_fields.write(config, architecture, config.family),
        **rope_fields.write(config.rope),
        "partial_rotary_factor": config.rope.share,
        "hidden_act": common_fields.written_activation(config),
        "attention_bias": False,
        "layer_types": [LINEAR if is_delta else rope_fields.GLOBAL for is_delta in config.delta_layers],
        "linear_num_key_heads": of.key_heads,
        "linear_num_value_heads": of.value_heads,
        "linear_key_head_dim": of.key_dim,
        "linear_value_head_dim": of.value_dim,
        "linear_conv_kernel_dim": of.width,
    }


def read_experts(fields: Fields, count: int, per_token: int, *, normalised: bool) -> Experts:
    """Return experts beside one for all tokens, which a sigmoid scales."""
    return Experts(
        count=count,
        per_token=fields.integer("num_experts_per_tok", per_token),
        d_ff=fields.integer("moe_intermediate_size", 512),
        normalised=normalised,
        balance_coefficient=common_fields.read_balance(fields),
        shared_d_ff=fields.integer("shared_expert_intermediate_size", 512),
        shared_gated=True,
    )


def write_experts(experts: Experts) -> dict[str, Any]:
    """Return the keys that `read_experts` reads."""
    return {
        **common_fields.write_balance(experts),
        "num_experts": experts.count,
        "num_experts_per_tok": experts.per_token,
        "moe_intermediate_size": experts.d_ff,
        "shared_expert_intermediate_size": experts.shared_d_ff,
    }


def _read_released(fields: Fields) -> None:
    """Read keys of released files that transformers does not: what they say is so, or of further predicted tokens."""
    fields.choice("attn_output_gate", (True,), True)
    fields.choice("output_gate_type", ("swish", "silu"), "swish")
    fields.choice("mamba_ssm_dtype", ("float32",), "float32")
    for key in ("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"):
        fields.value(key, None)


def _delta_layers(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Return which layers have a gated delta rule; without a list, all but every fourth."""
    every = fields.integer("full_attention_interval", 4)
    listed = fields.value("layer_types", None)
    if listed is None:
        return tuple((layer + 1) % every != 0 for layer in range(layers))
    if not isinstance(listed, list) or not set(listed) <= {LINEAR, rope_fields.GLOBAL} or len(listed) != layers:
        fields.refuse("layer_types", f"a list of {rope_fields.GLOBAL}, {LINEAR}, one for each layer")
    return tuple(kind == LINEAR for kind in listed)
