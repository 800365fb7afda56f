"""Llama 3, 3.1, 3.2 and models of their shape: the plain decoder."""

from typing import Any

from pttrainer.models.config import ModelConfig
from pttrainer.models.families.config_json import common_fields
from pttrainer.models.families.config_json.fields import Fields

FAMILY = "llama"
ARCHITECTURE = "LlamaForCausalLM"


def read(fields: Fields) -> ModelConfig:
    """Return the config in a `config.json`."""
    plain = common_fields.read_plain(fields, vocab_size=32_000, bos=(1,), eos=(2,))
    return ModelConfig(family=FAMILY, **plain, mlp_bias=fields.flag("mlp_bias", False))


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    return {**common_fields.write_plain(config, ARCHITECTURE), "mlp_bias": config.mlp_bias}
