"""Qwen 3.5, text only, dense and with experts: the layers of Qwen3-Next, with the delta rule's matrices apart.

Files of the multimodal models nest the text part in `text_config`; images are left out, and the export is a text model.
"""

from typing import Any

from pttrainer.models.config import ModelConfig
from pttrainer.models.families import qwen3_next
from pttrainer.models.families.config_reader import Fields

FAMILY = "qwen3_5_text"
FAMILY_WITH_EXPERTS = "qwen3_5_moe_text"
ARCHITECTURES = {FAMILY: "Qwen3_5ForCausalLM", FAMILY_WITH_EXPERTS: "Qwen3_5MoeForCausalLM"}


def read(fields: Fields) -> ModelConfig:
    """Return the config in the `config.json` of a dense model."""
    return ModelConfig(family=FAMILY, **qwen3_next.read_layers(fields, vocab_size=248_320, kv_heads=4, by_head=False))


def read_with_experts(fields: Fields) -> ModelConfig:
    """Return the config in the `config.json` of a model with experts."""
    common = qwen3_next.read_layers(fields, vocab_size=248_320, kv_heads=2, by_head=False)
    experts = qwen3_next.read_experts(fields, fields.integer("num_experts", 256), 8, normalised=True)
    return ModelConfig(family=FAMILY_WITH_EXPERTS, **common, experts=experts)


def read_with_images(fields: Fields) -> ModelConfig:
    """Return the text part of a multimodal config."""
    text = fields.inside("text_config")
    text.prefer(("bos_token_id", "eos_token_id", "pad_token_id"), fields)
    config = (read_with_experts if "num_experts" in text else read)(text)
    text.refuse_rest()
    # What only images need.
    for key in ("vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"):
        fields.value(key, None)
    fields.choice("tie_word_embeddings", (config.tied_head,), config.tied_head)
    return config


def write(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of this model."""
    written = qwen3_next.write_layers(config, ARCHITECTURES[config.family])
    return written if config.experts is None else {**written, **qwen3_next.write_experts(config.experts)}
