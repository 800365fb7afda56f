"""Qwen3-VL: Qwen 3, dense or with experts, with a vision tower for images of any size (arXiv 2511.21631).

The text part is Qwen 3: a job without images trains that, and exports a text model. Files of the whole model hold the
matrices of all experts in one tensor.
"""

from pttrainer.models.config import ModelConfig, QwenVision
from pttrainer.models.families.config_json.fields import Fields
from pttrainer.models.families.qwen import qwen3, qwen3_moe, vision

WITH_EXPERTS = "qwen3_vl_moe"
"""A `model_type`."""
TOKENS = {vision.IMAGE: 151_655, vision.VIDEO: 151_656, vision.BEGIN: 151_652, vision.END: 151_653}


def read_with_images(fields: Fields) -> ModelConfig:
    """Return the text part of a multimodal config."""
    has_experts = fields.value("model_type") == WITH_EXPERTS
    return vision.read_text(fields, _read_text_with_experts if has_experts else _read_text, TOKENS)


def read_vision(fields: Fields) -> QwenVision:
    """Return the vision tower of a multimodal config."""
    return vision.read_tower(fields, TOKENS, (24, 20, 20), deep_layers=[8, 16, 24])


def _read_text(fields: Fields) -> ModelConfig:
    return qwen3.read(fields, theta=500_000.0, max_positions=128_000, unread=vision.ROPE_OF_IMAGES)


def _read_text_with_experts(fields: Fields) -> ModelConfig:
    # transformers normalises whatever the file says.
    fields.choice("norm_topk_prob", (True,), True)
    return qwen3_moe.read(
        fields, theta=500_000.0, max_positions=128_000, kv_heads=16, experts=(60, 4, 1408), normalised=True,
        unread=vision.ROPE_OF_IMAGES,
    )  # fmt: skip
