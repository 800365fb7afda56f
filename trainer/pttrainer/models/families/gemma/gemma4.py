"""Gemma 4: dense, with experts beside the MLP, and small ones with embeddings per layer; its tower: `gemma4_vision`.

Global layers have heads of another size, of which a part turns, and in large models values are their keys. In small
models the last layers read keys and values of earlier ones. Sound is left out; an
export without images is a text model.
"""

from dataclasses import replace
from typing import Any

from pttrainer.models.config import Experts, GlobalHeads, LayerEmbeddings, ModelConfig
from pttrainer.models.families.config_json import common_fields, image_models, rope_fields
from pttrainer.models.families.config_json.fields import Fields

FAMILY = "gemma4_text"
ARCHITECTURE = "Gemma4ForCausalLM"
ROPES = {
    rope_fields.GLOBAL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
    rope_fields.LOCAL: {"rope_type": "default", "rope_theta": 10_000.0},
}
"""Of a file that says nothing of them."""
UNSUPPORTED_TOKENS = {"audio_token_id": 258_881, "video_token_id": 258_884}
ONLY_OTHER_INPUTS = (
    "audio_config", "boi_token_id", "eoi_token_id", "boa_token_id", "eoa_token_id", "eoa_token_index",
    "vision_soft_tokens_per_image",
)  # fmt: skip


def read(fields: Fields) -> ModelConfig:
    """Return the config in a `config.json`."""
    common = common_fields.read(
        fields, head_dim=256, heads=8, kv_heads=4, vocab_size=262_144, max_positions=131_072, tied=True, bos=(2,),
        eos=(1,), pad=(0,),
    )  # fmt: skip
    fields.default("rope_parameters", ROPES, unless="rope_parameters")
    rope, local_rope = rope_fields.read_by_kind(fields, 1_000_000.0, 10_000.0, common["max_positions"])
    # "vision": tokens of an image see each other, which is said again where images are read.
    fields.choice("use_bidirectional_attention", (None, "vision"), None)
    local, bias = _local_layers(fields, common["layers"]), fields.flag("attention_bias", False)
    borrowing = _borrowing_layers(fields, local)
    is_wide = fields.flag("use_double_wide_mlp", False) and any(borrowing)
    return ModelConfig(
        family=FAMILY,
        **common,
        rope=rope,
        local_rope=local_rope,
        local_layers=local if any(local) else (),
        window=fields.integer("sliding_window", 512),
        activation=common_fields.activation(fields, "hidden_activation", "gelu_pytorch_tanh"),
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=True,
        value_norm=True,
        post_norms=True,
        query_scale=1.0,
        embedding_scale=common["d_model"] ** 0.5,
        final_softcap=fields.nullable("final_logit_softcapping", fields.number, None),
        global_heads=_global_heads(fields, common, local),
        experts=_experts(fields, common["d_ff"]),
        borrowing_layers=borrowing,
        borrowing_d_ff=2 * common["d_ff"] if is_wide else None,
        layer_embeddings=_layer_embeddings(fields, common["vocab_size"]),
        layer_scalars=True,
    )


def read_with_images(fields: Fields) -> ModelConfig:
    """Return the text part of a multimodal config."""
    config = image_models.text_part(fields, lambda _: read, 258_880, ONLY_OTHER_INPUTS)
    ids = tuple((key, fields.integer(key, default)) for key, default in UNSUPPORTED_TOKENS.items())
    return replace(config, unsupported_token_ids=ids)


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    assert config.local_rope is not None
    assert config.global_heads is not None
    borrowing, embeddings, of = sum(config.borrowing_layers), config.layer_embeddings, config.global_heads
    return {
        **common_fields.write(config, ARCHITECTURE, FAMILY),
        **rope_fields.write_by_kind(config.rope, config.local_rope),
        "hidden_activation": common_fields.written_activation(config),
        "attention_bias": config.qkv_bias,
        "sliding_window": config.window,
        "layer_types": common_fields.layer_types(config),
        "final_logit_softcapping": config.final_softcap,
        "attention_k_eq_v": of.values_are_keys,
        "global_head_dim": of.head_dim,
        "num_global_key_value_heads": of.kv_heads if of.values_are_keys else None,
        "num_kv_shared_layers": borrowing,
        "use_double_wide_mlp": config.borrowing_d_ff is not None,
        "hidden_size_per_layer_input": embeddings.size if embeddings is not None else 0,
        "vocab_size_per_layer_input": (embeddings or config).vocab_size,
        **_written_experts(config.experts),
    }


def _local_layers(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Return one flag per layer; the last layer is global whatever the file says, as in transformers."""
    flags = common_fields.local_layers(fields, layers, lambda layer: (layer + 1) % 6 != 0) or (False,) * layers
    return (*flags[:-1], False)


def _borrowing_layers(fields: Fields, local: tuple[bool, ...]) -> tuple[bool, ...]:
    borrowing = fields.count("num_kv_shared_layers", 0)
    own = len(local) - borrowing
    if own < 1 or set(local[:own]) != set(local):
        fields.refuse("num_kv_shared_layers", "so few that a layer of each kind (layer_types) comes before them")
    return (False,) * own + (True,) * borrowing if borrowing else ()


def _global_heads(fields: Fields, common: dict[str, Any], local: tuple[bool, ...]) -> GlobalHeads:
    """Return the heads of global layers, in either spelling: for all of them, or one by one."""
    is_same, kv_heads = fields.flag("attention_k_eq_v", False), common["kv_heads"]
    head_dim = fields.integer("global_head_dim", 512)
    # Without `attention_k_eq_v` transformers reads this key, and does nothing with it.
    of_global = fields.nullable("num_global_key_value_heads", fields.integer, None)
    own = {"head_dim": head_dim} | ({"num_key_value_heads": of_global} if is_same and of_global else {})
    each = [str(layer) for layer, is_local in enumerate(local) if not is_local]
    listed = fields.value("per_layer_config", dict.fromkeys(each, own))
    if isinstance(listed, dict):  # transformers fills the numbers with zeros: "03"
        listed = {layer.lstrip("0") or "0": heads for layer, heads in listed.items()}
    first = listed.get(each[0], {}) if isinstance(listed, dict) else {}
    if listed != (dict.fromkeys(each, first) if first else {}) or not set(first) <= {"head_dim", "num_key_value_heads"}:
        fields.refuse("per_layer_config", f"head_dim and num_key_value_heads, the same for layers {', '.join(each)}")
    of = Fields(first, "config.json per_layer_config")
    kv_heads = of.integer("num_key_value_heads", kv_heads)
    if kv_heads != common["kv_heads"] and not is_same:
        fields.refuse("attention_k_eq_v", "true, where global layers have another number of keys")
    return GlobalHeads(kv_heads, of.integer("head_dim", common["head_dim"]), is_same)


def _layer_embeddings(fields: Fields, vocab_size: int) -> LayerEmbeddings | None:
    size, rows = fields.count("hidden_size_per_layer_input", 256), fields.integer("vocab_size_per_layer_input", 262_144)
    if not size:
        return None
    if rows < vocab_size:
        fields.refuse("vocab_size_per_layer_input", f"at least vocab_size ({vocab_size})")
    return LayerEmbeddings(size, rows)


def _experts(fields: Fields, d_ff: int) -> Experts | None:
    if not fields.flag("enable_moe_block", False):
        for key in ("num_experts", "top_k_experts", "moe_intermediate_size"):
            fields.value(key, None)
        return None
    return Experts(
        count=fields.integer("num_experts"),
        per_token=fields.integer("top_k_experts"),
        d_ff=fields.integer("moe_intermediate_size"),
        shared_d_ff=d_ff,
        beside_mlp=True,
    )


def _written_experts(experts: Experts | None) -> dict[str, Any]:
    if experts is None:
        return {"enable_moe_block": False}
    return {
        "enable_moe_block": True,
        "num_experts": experts.count,
        "top_k_experts": experts.per_token,
        "moe_intermediate_size": experts.d_ff,
    }
