"""Qwen3-VL: Qwen 3 with a vision tower for images of any size (arXiv 2511.21631).

The text part is Qwen 3: a job without images trains that, and exports a text model.
"""

from pttrainer.models.config import ModelConfig, QwenVision
from pttrainer.models.families.config_json.fields import Fields
from pttrainer.models.families.qwen import qwen3, vision

TOKENS = {vision.IMAGE: 151_655, vision.VIDEO: 151_656, vision.BEGIN: 151_652, vision.END: 151_653}


def read_with_images(fields: Fields) -> ModelConfig:
    """Return the text part of a multimodal config."""
    return vision.read_text(fields, _read_text, TOKENS)


def read_vision(fields: Fields) -> QwenVision:
    """Return the vision tower of a multimodal config."""
    return vision.read_tower(fields, TOKENS, (24, 20, 20), deep_layers=[8, 16, 24])


def _read_text(fields: Fields) -> ModelConfig:
    return qwen3.read(fields, theta=500_000.0, max_positions=128_000, unread=vision.ROPE_OF_IMAGES)
