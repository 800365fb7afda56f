"""Qwen 3: a norm on each query and key head (arXiv 2505.09388)."""

from typing import Any

from pttrainer.models.config import ModelConfig
from pttrainer.models.families.config_json import common_fields
from pttrainer.models.families.config_json.fields import Fields
from pttrainer.models.families.qwen.qwen2 import read_windows, write_windows

FAMILY = "qwen3"
ARCHITECTURE = "Qwen3ForCausalLM"


def read(
    fields: Fields, *, theta: float = 10_000.0, max_positions: int = 32_768, unread: tuple[str, ...] = ()
) -> ModelConfig:
    """Return the config in a `config.json`. theta, max_positions: defaults; unread: keys of the rotary embedding."""
    common = common_fields.read_plain(
        fields, theta=theta, unread=unread, vocab_size=151_936, head_dim=128, max_positions=max_positions
    )
    return ModelConfig(family=FAMILY, **common, **read_windows(fields, common["layers"]), qk_norm=True)


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    return {**common_fields.write_plain(config, ARCHITECTURE), **write_windows(config)}
