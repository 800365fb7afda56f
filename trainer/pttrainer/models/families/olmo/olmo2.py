"""OLMo 2: norms behind attention and MLP only, queries and keys normed as whole vectors (arXiv 2501.00656)."""

from typing import Any

from pttrainer.models.config import ModelConfig
from pttrainer.models.families.config_json import common_fields
from pttrainer.models.families.config_json.fields import Fields

FAMILY = "olmo2"
ARCHITECTURE = "Olmo2ForCausalLM"
NORMS: dict[str, Any] = {"pre_norms": False, "post_norms": True, "qk_norm": True, "whole_qk_norm": True}
DEFAULTS: dict[str, Any] = {"vocab_size": 50_304, "eos": (50_279,), "pad": (1,), "norm_eps": 1e-5}


def read(fields: Fields) -> ModelConfig:
    """Return the config in a `config.json`."""
    return ModelConfig(family=FAMILY, **common_fields.read_plain(fields, **DEFAULTS), **NORMS)


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    return common_fields.write_plain(config, ARCHITECTURE)
