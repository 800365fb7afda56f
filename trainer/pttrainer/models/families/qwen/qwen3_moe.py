"""Qwen 3 with experts: a softmax over all experts, the best k, optionally normalised to sum to 1."""

from typing import Any

from pttrainer.models.config import Experts, ModelConfig
from pttrainer.models.families.config_json import common_fields
from pttrainer.models.families.config_json.fields import Fields

FAMILY = "qwen3_moe"
ARCHITECTURE = "Qwen3MoeForCausalLM"


def read(
    fields: Fields,
    *,
    theta: float = 10_000.0,
    max_positions: int = 32_768,
    kv_heads: int = 4,
    experts: tuple[int, int, int] = (128, 8, 768),
    normalised: bool = False,
    unread: tuple[str, ...] = (),
) -> ModelConfig:
    """Return the config in a `config.json`. Named are defaults; experts: their number, those of a token, their size.

    unread: keys of the rotary embedding that change nothing here.
    """
    common = common_fields.read_plain(
        fields, theta=theta, unread=unread, vocab_size=151_936, kv_heads=kv_heads, max_positions=max_positions
    )
    count, per_token, d_ff = experts
    window = fields.nullable("sliding_window", fields.integer, 4096)
    window = window if fields.flag("use_sliding_window", False) else None
    # Without effect where every layer is alike.
    fields.value("max_window_layers", None)
    return ModelConfig(
        family=FAMILY,
        **common,
        qk_norm=True,
        window=window,
        local_layers=(True,) * common["layers"] if window else (),
        dense_layers=read_dense_layers(fields, common["layers"]),
        experts=Experts(
            count=fields.integer("num_local_experts" if "num_local_experts" in fields else "num_experts", count),
            per_token=fields.integer("num_experts_per_tok", per_token),
            d_ff=fields.integer("moe_intermediate_size", d_ff),
            normalised=fields.flag("norm_topk_prob", normalised),
            balance_coefficient=common_fields.read_balance(fields),
        ),
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    assert config.experts is not None
    return {
        **common_fields.write_plain(config, ARCHITECTURE),
        **common_fields.write_balance(config.experts),
        "use_sliding_window": config.window is not None,
        "sliding_window": config.window,
        "num_experts": config.experts.count,
        "num_experts_per_tok": config.experts.per_token,
        "moe_intermediate_size": config.experts.d_ff,
        "norm_topk_prob": config.experts.normalised,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [layer for layer, is_dense in enumerate(config.dense_layers) if is_dense],
    }


def read_dense_layers(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Return which layers have an MLP in place of experts: those listed, and all but every `decoder_sparse_step`-th."""
    step, listed = fields.integer("decoder_sparse_step", 1), fields.value("mlp_only_layers", [])
    flags = tuple((layer + 1) % step != 0 or layer in listed for layer in range(layers))
    if all(flags):
        fields.refuse("mlp_only_layers", "a list that leaves a layer with experts")
    return flags if any(flags) else ()
