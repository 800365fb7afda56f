"""Gemma 3, text only: five local layers with their own rotary base per global one (arXiv 2503.19786).

Files of the multimodal models nest the text part in `text_config`; images are left out, and the export is a text model.
"""

from typing import Any

from pttrainer.models.config import ModelConfig, Rope
from pttrainer.models.families.config_json import common_fields, image_models, rope_fields
from pttrainer.models.families.config_json.fields import Fields
from pttrainer.models.families.gemma.gemma2 import read_sizes, write_sizes

FAMILY = "gemma3_text"
ARCHITECTURE = "Gemma3ForCausalLM"


def read(fields: Fields) -> ModelConfig:
    """Return the config in a `config.json`."""
    common = read_sizes(fields, vocab_size=262_208, max_positions=131_072)
    pattern = fields.integer("sliding_window_pattern", 6)
    global_rope, local_rope = _ropes(fields, common["max_positions"])
    return ModelConfig(
        family=FAMILY,
        **common,
        rope=global_rope,
        local_rope=local_rope,
        local_layers=common_fields.local_layers(fields, common["layers"], lambda layer: (layer + 1) % pattern != 0),
        qk_norm=True,
        attention_softcap=fields.choice("attn_logit_softcapping", (None,), None),
        final_softcap=fields.nullable("final_logit_softcapping", fields.number, None),
    )


def read_with_images(fields: Fields) -> ModelConfig:
    """Return the text part of a multimodal config."""
    return image_models.text_part(fields, lambda _: read, 262_144, ("mm_tokens_per_image",))


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    assert config.local_rope is not None
    return {
        **write_sizes(config, ARCHITECTURE, FAMILY),
        **_write_ropes(config.rope, config.local_rope),
        "final_logit_softcapping": config.final_softcap,
    }


def _ropes(fields: Fields, max_positions: int) -> tuple[Rope, Rope]:
    """Return the rotary embedding of global and of local layers."""
    theta, local_theta = fields.number("rope_theta", 1_000_000.0), fields.number("rope_local_base_freq", 10_000.0)
    return rope_fields.read_by_kind(fields, theta, local_theta, max_positions)


def _write_ropes(global_rope: Rope, local_rope: Rope) -> dict[str, Any]:
    """Return the rotary keys. Only the newer spelling can scale local layers."""
    if local_rope.scaling is None:
        return {**rope_fields.write(global_rope), "rope_local_base_freq": local_rope.theta}
    return rope_fields.write_by_kind(global_rope, local_rope)
