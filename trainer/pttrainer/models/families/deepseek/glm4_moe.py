"""GLM 4.5 to 4.7: half of each head turns; experts chosen by corrected sigmoids, beside one for all tokens."""

from typing import Any

from pttrainer.models.config import Experts, ModelConfig
from pttrainer.models.families.config_json import common_fields, rope_fields
from pttrainer.models.families.config_json.fields import Fields

FAMILY = "glm4_moe"
ARCHITECTURE = "Glm4MoeForCausalLM"


def read(fields: Fields) -> ModelConfig:
    """Return the config in a `config.json`."""
    common = common_fields.read(fields, vocab_size=151_552, heads=96, kv_heads=8, max_positions=131_072, norm_eps=1e-5)
    dense_layers = read_first_dense(fields, common["layers"], 1)
    return ModelConfig(
        family=FAMILY,
        **common,
        rope=rope_fields.read(fields, 10_000.0, common["max_positions"], share=0.5),
        activation=common_fields.activation(fields, "hidden_act", "silu"),
        qkv_bias=fields.flag("attention_bias", False),
        qk_norm=fields.flag("use_qk_norm", False),
        **mixed(dense_layers, read_experts(fields, per_token=8, count=128, d_ff=1408, shared=1)),
        prediction_layers=fields.count("num_nextn_predict_layers", 1),
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    return {
        **common_fields.write(config, ARCHITECTURE, FAMILY),
        **rope_fields.write(config.rope),
        "partial_rotary_factor": config.rope.share,
        "hidden_act": common_fields.written_activation(config),
        "attention_bias": config.qkv_bias,
        "use_qk_norm": config.qk_norm,
        "first_k_dense_replace": first_dense(config),
        "num_nextn_predict_layers": 0,
        **write_experts(config),
    }


def read_first_dense(fields: Fields, layers: int, default: int) -> tuple[bool, ...]:
    """Return which layers have an MLP: the first ones."""
    first = fields.count("first_k_dense_replace", default)
    return tuple(layer < first for layer in range(layers))


def first_dense(config: ModelConfig) -> int:
    """Return how many layers have an MLP."""
    return sum(config.is_dense(layer) for layer in range(config.layers))


def mixed(dense_layers: tuple[bool, ...], experts: Experts) -> dict[str, Any]:
    """Return arguments of ModelConfig: with an MLP in every layer it has no experts, whatever its file says."""
    if all(dense_layers):
        return {"experts": None}
    return {"experts": experts, "dense_layers": dense_layers if any(dense_layers) else ()}


def read_experts(
    fields: Fields,
    *,
    per_token: int,
    count: int,
    d_ff: int,
    shared: int,
    groups: int = 1,
    groups_used: int = 1,
    scale: float = 1.0,
) -> Experts:
    """Return experts in DeepSeek's keys, which GLM shares; named parameters are the family's defaults."""
    size = fields.integer("moe_intermediate_size", d_ff)
    return Experts(
        count=fields.integer("num_local_experts" if "num_local_experts" in fields else "n_routed_experts", count),
        per_token=fields.integer("num_experts_per_tok", per_token),
        d_ff=size,
        normalised=fields.flag("norm_topk_prob", True),
        sigmoid=True,
        corrected=True,
        groups=fields.integer("n_group", groups),
        groups_used=fields.integer("topk_group", groups_used),
        scale=fields.number("routed_scaling_factor", scale),
        shared_d_ff=size * fields.integer("n_shared_experts", shared),
    )


def write_experts(config: ModelConfig) -> dict[str, Any]:
    """Return the keys that `read_experts` reads; none if no layer has experts."""
    experts = config.experts
    if experts is None:
        return {}
    return {
        "n_routed_experts": experts.count,
        "num_experts_per_tok": experts.per_token,
        "moe_intermediate_size": experts.d_ff,
        "norm_topk_prob": experts.normalised,
        "n_group": experts.groups,
        "topk_group": experts.groups_used,
        "routed_scaling_factor": experts.scale,
        "n_shared_experts": experts.shared_d_ff // experts.d_ff,
    }
