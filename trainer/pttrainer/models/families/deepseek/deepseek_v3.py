"""DeepSeek V3 and R1, Kimi K2: latent attention; experts chosen by corrected sigmoids in groups, beside a shared one.

arXiv 2412.19437. The first layers have an MLP in place of the experts. Kimi's files differ in the model type alone, and
their export is a DeepSeek V3. Layers that predict further tokens (`num_nextn_predict_layers`) are left out.
"""

import math
from typing import Any

from pttrainer.models.config import Latent, ModelConfig, YarnScaling
from pttrainer.models.families.config_json import common_fields, rope_fields
from pttrainer.models.families.config_json.fields import Fields
from pttrainer.models.families.deepseek.glm4_moe import (
    first_dense,
    mixed,
    read_experts,
    read_first_dense,
    write_experts,
)

FAMILY = "deepseek_v3"
ARCHITECTURE = "DeepseekV3ForCausalLM"


def read(fields: Fields) -> ModelConfig:
    """Return the config in a `config.json`."""
    common = common_fields.read(fields, vocab_size=129_280, heads=128, max_positions=4096, bos=(0,), eos=(1,))
    latent = Latent(
        rank=fields.integer("kv_lora_rank", 512),
        query_rank=fields.nullable("q_lora_rank", fields.integer, 1536),
        rotary=fields.integer("qk_rope_head_dim", 64),
        value_dim=fields.integer("v_head_dim", 128),
        interleaved=fields.flag("rope_interleave", True),
    )
    head_dim = fields.integer("qk_nope_head_dim", 128) + latent.rotary
    _refuse_variants(fields)
    slope = read_slope(fields)
    return ModelConfig(
        family=FAMILY,
        **{**common, "head_dim": head_dim, "kv_heads": common["heads"]},
        rope=rope_fields.read(fields, 10_000.0, common["max_positions"]),
        activation=common_fields.activation(fields, "hidden_act", "silu"),
        query_scale=head_dim**-0.5 * slope * slope,
        latent=latent,
        **read_biases(fields),
        **mixed(
            read_first_dense(fields, common["layers"], 3),
            read_experts(fields, per_token=8, count=256, d_ff=2048, shared=1, groups=8, groups_used=4, scale=2.5),
        ),
        prediction_layers=fields.count("num_nextn_predict_layers", 1),
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    assert config.latent is not None
    return {
        **write_shared(config, ARCHITECTURE, FAMILY),
        "rope_interleave": config.latent.interleaved,
        "first_k_dense_replace": first_dense(config),
    }


def write_shared(config: ModelConfig, architecture: str, family: str) -> dict[str, Any]:
    """Return what every family with latent attention and these experts writes."""
    latent = config.latent
    assert latent is not None
    written = common_fields.write(config, architecture, family)
    del written["head_dim"]
    return {
        **written,
        **_write_rope(config),
        **write_experts(config),
        "hidden_act": common_fields.written_activation(config),
        "kv_lora_rank": latent.rank,
        "q_lora_rank": latent.query_rank,
        "qk_rope_head_dim": latent.rotary,
        "qk_nope_head_dim": config.head_dim - latent.rotary,
        "v_head_dim": latent.value_dim,
        "attention_bias": config.o_bias,
        "num_nextn_predict_layers": 0,
    }


def read_biases(fields: Fields) -> dict[str, Any]:
    """Return arguments of ModelConfig: one flag adds biases to both latents and to the result."""
    has_biases = fields.flag("attention_bias", False)
    return {"qkv_bias": has_biases, "o_bias": has_biases}


def read_slope(fields: Fields) -> float:
    """Return how much longer contexts sharpen the scores, once for queries and once for keys."""
    scaling = fields.inside("rope_scaling" if "rope_scaling" in fields else "rope_parameters")
    by = scaling.number("mscale_all_dim", 0.0)
    if not by or scaling.value("rope_type", scaling.value("type", "default")) == "default":
        return 1.0
    factor = scaling.number("factor", 1.0)
    return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0


def _refuse_variants(fields: Fields) -> None:
    """Refuse what no released model of the family has."""
    fields.choice("scoring_func", ("sigmoid",), "sigmoid")
    fields.choice("topk_method", ("noaux_tc",), "noaux_tc")
    fields.choice("moe_layer_freq", (1,), 1)
    # Of their training: balance of a sequence, devices that held the experts. And a sum that transformers writes.
    for key in ("aux_loss_alpha", "seq_aux", "ep_size", "qk_head_dim"):
        fields.value(key, None)


def _write_rope(config: ModelConfig) -> dict[str, Any]:
    """Return the rotary keys; the slope of the scores is written as the factor that it follows from."""
    written = rope_fields.write(config.rope)
    slope, scaling = (config.scale * config.head_dim**0.5) ** 0.5, config.rope.scaling
    if isinstance(scaling, YarnScaling) and scaling.factor > 1 and slope != 1.0:
        written["rope_scaling"]["mscale_all_dim"] = (slope - 1.0) / (0.1 * math.log(scaling.factor))
    return written
