"""Phi 3 and 4: a plain decoder whose files hold queries, keys and values, and gate and up, as one matrix each.

The long ones have two lists of rotary factors; the longest sequence of a job decides which (`ModelConfig.at_length`).
"""

from typing import Any

from pttrainer.models.config import LongRopeScaling, ModelConfig, Rope
from pttrainer.models.families.config_json import common_fields, long_rope, rope_fields
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
    window = fields.nullable("sliding_window", fields.integer, None)
    return ModelConfig(
        family=FAMILY,
        **common,
        rope=_read_rope(fields, common["head_dim"], common["max_positions"]),
        activation=common_fields.activation(fields, "hidden_act", "silu"),
        window=window,
        local_layers=(True,) * common["layers"] if window else (),
    )


def _read_rope(fields: Fields, head_dim: int, max_positions: int) -> Rope:
    original = fields.integer("original_max_position_embeddings", 4096)
    scaling = fields.inside("rope_scaling" if "rope_scaling" in fields else "rope_parameters")
    key = "rope_type" if "rope_type" in scaling else "type"
    if scaling.choice(key, ("default", *long_rope.NAMES), "default") == "default":
        return rope_fields.read(fields, 10_000.0, max_positions, share=1.0)
    share = scaling.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    theta = scaling.number("rope_theta", fields.number("rope_theta", 10_000.0))
    if theta <= 0:
        (scaling if "rope_theta" in scaling else fields).refuse("rope_theta", "a number above 0")
    scaling.value("type", None)  # which the other name, if it is there, takes precedence over
    pairs = int(head_dim * share) // 2
    read = long_rope.read(scaling, original=original, max_positions=max_positions, pairs=pairs)
    scaling.refuse_rest()
    return Rope(theta, read, share)


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    return {
        **common_fields.write(config, ARCHITECTURE, FAMILY),
        **_write_rope(config),
        "partial_rotary_factor": config.rope.share,
        "hidden_act": common_fields.written_activation(config),
        "sliding_window": config.window,
    }


def _write_rope(config: ModelConfig) -> dict[str, Any]:
    scaling = config.rope.scaling
    if not isinstance(scaling, LongRopeScaling):
        return rope_fields.write(config.rope)
    return {
        "rope_theta": config.rope.theta,
        "rope_scaling": long_rope.write(scaling, config.max_positions),
        "original_max_position_embeddings": scaling.original_max_positions,
    }
