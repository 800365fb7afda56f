"""The vision tower of Qwen3-VL and Qwen 3.5, and what stands around both parts in `config.json`.

Tokens of an image turn by row and column (M-RoPE), which text does not show. Videos are refused.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pttrainer.models.config import ModelConfig, QwenVision
from pttrainer.models.families.config_json import common_fields, image_models
from pttrainer.models.families.config_json.fields import Fields
from pttrainer.models.families.config_json.image_models import Reader

ARCHITECTURES = {
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
    "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
}
"""By `model_type`."""
BEGIN, END, IMAGE, VIDEO = "vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id"
ROPE_OF_IMAGES = ("mrope_section", "mrope_interleaved")
"""Keys of the rotary embedding that say nothing of text."""


def read_text(fields: Fields, reader: Reader, tokens: Mapping[str, int]) -> ModelConfig:
    """Return the text part of a multimodal config. tokens: the family's defaults."""
    config = image_models.text_part(fields, lambda _: reader, tokens[IMAGE], (BEGIN, END))
    return replace(config, unsupported_token_ids=((VIDEO, fields.integer(VIDEO, tokens[VIDEO])),))


def read_tower(
    fields: Fields, tokens: Mapping[str, int], sections: tuple[int, int, int], deep_layers: list[int]
) -> QwenVision:
    """Return the tower. tokens, sections, deep_layers: the family's defaults."""
    model_type, tower = fields.value("model_type"), fields.inside("vision_config")
    tower.choice("model_type", (model_type, f"{model_type}_vision"), model_type)
    tower.choice("in_channels", (3,), 3)
    tower.inside("rope_parameters").choice("rope_theta", (10_000.0,), 10_000.0)
    d_model = fields.inside("text_config").integer("hidden_size")
    tower.choice("out_hidden_size", (d_model,), d_model)
    positions = tower.integer("num_position_embeddings", 2304)
    side = round(positions**0.5)
    if side * side != positions:
        tower.refuse("num_position_embeddings", "a square")
    vision = QwenVision(
        model_type=model_type,
        d_model=tower.integer("hidden_size", 1152),
        d_ff=tower.integer("intermediate_size", 4304),
        layers=tower.integer("depth", 27),
        heads=tower.integer("num_heads", 16),
        patch_size=tower.integer("patch_size", 16),
        merge=tower.integer("spatial_merge_size", 2),
        frames=tower.integer("temporal_patch_size", 2),
        positions_per_side=side,
        begin_id=fields.integer(BEGIN, tokens[BEGIN]),
        end_id=fields.integer(END, tokens[END]),
        sections=_sections(fields, sections),
        deep_layers=_deep_layers(tower, deep_layers),
        activation=common_fields.activation(tower, "hidden_act", "gelu_pytorch_tanh"),
    )
    tower.refuse_rest()
    return vision


def with_vision(text: dict[str, Any], config: ModelConfig, vision: QwenVision) -> dict[str, Any]:
    """Return the `config.json` of a whole model. text: that of its text part."""
    rope = text.get("rope_scaling") or {"rope_type": "default"}
    turning = {**rope, "mrope_section": list(vision.sections), "mrope_interleaved": True}
    text = {**text, "model_type": f"{vision.model_type}_text", "rope_scaling": turning}
    return {
        "architectures": [ARCHITECTURES[vision.model_type]],
        "model_type": vision.model_type,
        "text_config": text,
        "vision_config": _written(vision, config.d_model),
        IMAGE: config.image_token_id,
        **dict(config.unsupported_token_ids),
        BEGIN: vision.begin_id,
        END: vision.end_id,
        **{key: text[key] for key in ("tie_word_embeddings", "eos_token_id") if key in text},
    }


def _written(vision: QwenVision, d_model: int) -> dict[str, Any]:
    return {
        "model_type": f"{vision.model_type}_vision",
        "hidden_size": vision.d_model,
        "intermediate_size": vision.d_ff,
        "depth": vision.layers,
        "num_heads": vision.heads,
        "patch_size": vision.patch_size,
        "spatial_merge_size": vision.merge,
        "temporal_patch_size": vision.frames,
        "num_position_embeddings": vision.positions_per_side**2,
        "out_hidden_size": d_model,
        "hidden_act": common_fields.WRITTEN_ACTIVATIONS[vision.activation],
        **({"deepstack_visual_indexes": list(vision.deep_layers)} if vision.model_type.startswith("qwen3_vl") else {}),
    }


def _sections(fields: Fields, default: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return how many pairs turn by time, row and column, in either spelling of the rotary embedding."""
    text = fields.inside("text_config")
    rope = text.inside("rope_scaling" if "rope_scaling" in text else "rope_parameters")
    rope.choice("mrope_interleaved", (True,), True)
    value = rope.value("mrope_section", list(default))
    if not isinstance(value, list) or len(value) != 3 or not all(type(n) is int and n >= 0 for n in value):
        rope.refuse("mrope_section", "three whole numbers")
    time, row, column = value
    return time, row, column


def _deep_layers(tower: Fields, default: list[int]) -> tuple[int, ...]:
    value = tower.value("deepstack_visual_indexes", default)
    if not isinstance(value, list) or not all(type(n) is int for n in value):
        tower.refuse("deepstack_visual_indexes", "a list of numbers of layers")
    return tuple(value)
