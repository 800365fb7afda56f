"""Ministral 3: YaRN, and queries that grow with their position."""

from dataclasses import replace
from typing import Any

from pttrainer.models.config import ModelConfig, QueryScaling
from pttrainer.models.families.config_json import common_fields, rope_fields
from pttrainer.models.families.config_json.fields import Fields

FAMILY = "ministral3"
ARCHITECTURE = "Ministral3ForCausalLM"

ROPE = {
    "rope_type": "yarn", "rope_theta": 1_000_000.0, "factor": 16.0, "original_max_position_embeddings": 16_384,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
"""Meaning of a file without any rotary parameters."""


def read(fields: Fields) -> ModelConfig:
    """Return the config in a `config.json`."""
    common = common_fields.read(
        fields, head_dim=128, vocab_size=131_072, kv_heads=8, max_positions=262_144, bos=(1,), eos=(2,), pad=(11,),
        norm_eps=1e-5,
    )  # fmt: skip
    fields.default("rope_parameters", ROPE, unless="rope_scaling")
    ropes = fields.inside("rope_scaling" if "rope_scaling" in fields else "rope_parameters")
    # Of training; nothing here reads it.
    ropes.value("max_position_embeddings", None)
    scaling = QueryScaling(ropes.number("llama_4_scaling_beta"), ropes.integer("original_max_position_embeddings"))
    rope = rope_fields.read_one(ropes, fields.number("rope_theta", 1_000_000.0), common["max_positions"])
    window = fields.nullable("sliding_window", fields.integer, None)
    return ModelConfig(
        family=FAMILY,
        **common,
        rope=replace(rope, query_scaling=scaling),
        activation=common_fields.activation(fields, "hidden_act", "silu"),
        window=window,
        local_layers=(True,) * common["layers"] if window else (),
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    scaling = config.rope.query_scaling
    assert scaling is not None
    of_queries = {"llama_4_scaling_beta": scaling.slope, "original_max_position_embeddings": scaling.period}
    return {
        **common_fields.write(config, ARCHITECTURE, FAMILY),
        "rope_parameters": rope_fields.write_one(config.rope) | of_queries,
        "hidden_act": common_fields.written_activation(config),
        "sliding_window": config.window,
    }
