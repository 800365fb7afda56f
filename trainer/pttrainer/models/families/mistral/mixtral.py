"""Mixtral: Mistral with experts: a softmax over all, the best k, normalised to sum to 1 (arXiv 2401.04088)."""

from typing import Any

from pttrainer.models.config import Experts, ModelConfig
from pttrainer.models.families.config_json import common_fields
from pttrainer.models.families.config_json.fields import Fields
from pttrainer.models.families.mistral import mistral

FAMILY = "mixtral"
ARCHITECTURE = "MixtralForCausalLM"


def read(fields: Fields) -> ModelConfig:
    """Return the config in a `config.json`."""
    # Noise on the stream in training only; nothing here adds any.
    fields.choice("router_jitter_noise", (0.0,), 0.0)
    return mistral.read(
        fields,
        family=FAMILY,
        norm_eps=1e-5,
        theta=1_000_000.0,
        usual_window=None,
        experts=Experts(
            count=fields.integer("num_local_experts", 8),
            per_token=fields.integer("num_experts_per_tok", 2),
            d_ff=fields.integer("intermediate_size"),
            balance_coefficient=common_fields.read_balance(fields),
        ),
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    assert config.experts is not None
    return {
        **mistral.write(config, ARCHITECTURE),
        **common_fields.write_balance(config.experts),
        "num_local_experts": config.experts.count,
        "num_experts_per_tok": config.experts.per_token,
        "router_jitter_noise": 0.0,
    }
