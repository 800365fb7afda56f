"""Llama 4: chunks of attention with rotary embeddings beside global layers without them, and experts.

Global layers scale queries by position. Files of the multimodal models nest the text part in `text_config`; their tower
is `llama4_vision`'s.
"""

from typing import Any

from pttrainer.models.config import Chunk, Experts, ModelConfig, QueryScaling, Rope
from pttrainer.models.families.config_json import common_fields, image_models, rope_fields
from pttrainer.models.families.config_json.fields import Fields
from pttrainer.models.families.smollm3 import still_layers

FAMILY = "llama4_text"
ARCHITECTURE = "Llama4ForCausalLM"
CHUNKED = "chunked_attention"


def read(fields: Fields) -> ModelConfig:
    """Return the config in a `config.json`."""
    common = common_fields.read(
        fields, vocab_size=202_048, heads=40, kv_heads=8, head_dim=128, max_positions=131_072, bos=(1,), eos=(2,),
        norm_eps=1e-5,
    )  # fmt: skip
    layers, expert_d_ff, bias = common["layers"], common["d_ff"], fields.flag("attention_bias", False)
    still = still_layers(fields, layers, may_be_empty=True)
    kinds = [rope_fields.GLOBAL if is_still else CHUNKED for is_still in still]
    # Rotary embedding and chunks could differ by layer in transformers; no released model has it.
    fields.choice("layer_types", (kinds,), kinds)
    rope, scaling = rope_fields.read(fields, 500_000.0, common["max_positions"]), _read_query_scaling(fields)
    return ModelConfig(
        family=FAMILY,
        **{**common, "d_ff": fields.integer("intermediate_size_mlp", 16_384)},
        rope=Rope(rope.theta, None, 0.0, scaling),
        local_rope=Rope(rope.theta, rope.scaling, 1.0, None if scaling is None else QueryScaling(0.0, scaling.period)),
        window=Chunk(fields.integer("attention_chunk_size", 8192)),
        local_layers=tuple(not is_still for is_still in still),
        interleaved_rope=True,
        local_l2_norm=fields.flag("use_qk_norm", True),
        activation=common_fields.activation(fields, "hidden_act", "silu"),
        qkv_bias=bias,
        o_bias=bias,
        experts=_read_experts(fields, expert_d_ff),
        dense_layers=_read_dense_layers(fields, layers),
    )


def read_with_images(fields: Fields) -> ModelConfig:
    """Return the text part of a multimodal config."""
    return image_models.text_part(fields, lambda _: read, 200_092, ())


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    experts, scaling, local_rope = config.experts, config.rope.query_scaling, config.local_rope
    assert experts is not None
    assert local_rope is not None
    assert isinstance(config.window, Chunk)
    of_queries = {} if scaling is None else {"attn_scale": scaling.slope, "floor_scale": scaling.period}
    return {
        **common_fields.write(config, ARCHITECTURE, FAMILY),
        **rope_fields.write(local_rope),
        "intermediate_size": experts.d_ff,
        "intermediate_size_mlp": config.d_ff,
        "hidden_act": common_fields.written_activation(config),
        "attention_bias": config.qkv_bias,
        "use_qk_norm": config.local_l2_norm,
        "no_rope_layers": [int(config.is_local(layer)) for layer in range(config.layers)],
        "layer_types": [CHUNKED if config.is_local(n) else rope_fields.GLOBAL for n in range(config.layers)],
        "attention_chunk_size": config.window.size,
        "attn_temperature_tuning": scaling is not None,
        **of_queries,
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.per_token,
        "moe_layers": [layer for layer in range(config.layers) if not config.is_dense(layer)],
    }


def _read_query_scaling(fields: Fields) -> QueryScaling | None:
    is_tuned = fields.value("attn_temperature_tuning", True)
    scaling = QueryScaling(fields.number("attn_scale", 0.1), fields.integer("floor_scale", 8192), first=1)
    return scaling if is_tuned else None


def _read_experts(fields: Fields, d_ff: int) -> Experts:
    # Of a loss in training that transformers adds nowhere.
    fields.value("router_aux_loss_coef", None)
    fields.choice("router_jitter_noise", (0.0,), 0.0)
    return Experts(
        count=fields.integer("num_local_experts", 16),
        per_token=fields.integer("num_experts_per_tok", 1),
        d_ff=d_ff,
        normalised=False,
        sigmoid=True,
        shared_d_ff=d_ff,
        weighs_inputs=True,
    )


def _read_dense_layers(fields: Fields, layers: int) -> tuple[bool, ...]:
    step = fields.integer("interleave_moe_layer_step", 1)
    with_experts = fields.value("moe_layers", list(range(step - 1, layers, step)))
    if not isinstance(with_experts, list) or not set(with_experts) & set(range(layers)):
        fields.refuse("moe_layers", f"a list of layers with experts, of 0 to {layers - 1}")
    dense = tuple(layer not in with_experts for layer in range(layers))
    return dense if any(dense) else ()
