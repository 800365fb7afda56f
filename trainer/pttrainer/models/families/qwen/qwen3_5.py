"""Qwen 3.5, dense and with experts: the layers of Qwen3-Next, with the delta rule's matrices apart.

Files of the multimodal models nest the text part in `text_config`. A job that takes images reads the vision tower, too,
and exports the whole model; for any other, images are left out, and the export is a text model.
"""

from typing import Any

from pttrainer.models.config import ModelConfig, QwenVision
from pttrainer.models.families.config_json.fields import Fields
from pttrainer.models.families.qwen import qwen3_next, vision

FAMILY = "qwen3_5_text"
FAMILY_WITH_EXPERTS = "qwen3_5_moe_text"
FAMILIES = (FAMILY, FAMILY_WITH_EXPERTS)
ARCHITECTURES = {FAMILY: "Qwen3_5ForCausalLM", FAMILY_WITH_EXPERTS: "Qwen3_5MoeForCausalLM"}

TOKENS = {vision.IMAGE: 248_056, vision.VIDEO: 248_057, vision.BEGIN: 248_053, vision.END: 248_054}


def read(fields: Fields) -> ModelConfig:
    """Return the config in the `config.json` of a dense model."""
    layers = qwen3_next.read_layers(fields, vocab_size=248_320, kv_heads=4, d_ff=12_288, by_head=False)
    return ModelConfig(family=FAMILY, **layers)


def read_with_experts(fields: Fields) -> ModelConfig:
    """Return the config in the `config.json` of a model with experts."""
    # Every layer has experts: there is no MLP of this size.
    d_ff = fields.value("moe_intermediate_size", 512)
    common = qwen3_next.read_layers(fields, vocab_size=248_320, kv_heads=2, d_ff=d_ff, by_head=False)
    experts = qwen3_next.read_experts(fields, fields.integer("num_experts", 256), 8, normalised=True)
    return ModelConfig(family=FAMILY_WITH_EXPERTS, **common, experts=experts)


def read_with_images(fields: Fields) -> ModelConfig:
    """Return the text part of a multimodal config."""
    reader = read_with_experts if fields.value("model_type") == "qwen3_5_moe" else read
    return vision.read_text(fields, reader, TOKENS)


def read_vision(fields: Fields) -> QwenVision:
    """Return the vision tower of a multimodal config."""
    return vision.read_tower(fields, TOKENS, (11, 11, 10), deep_layers=[])


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    written = qwen3_next.write_layers(config, ARCHITECTURES[config.family])
    return written if config.experts is None else {**written, **qwen3_next.write_experts(config.experts)}
