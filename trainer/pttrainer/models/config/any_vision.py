"""The config of any vision tower."""

from pttrainer.models.config.gemma4_vision import Gemma4Vision
from pttrainer.models.config.llama4_vision import Llama4Vision
from pttrainer.models.config.pixtral import Pixtral
from pttrainer.models.config.vision import QwenVision, Vision

AnyVision = Vision | QwenVision | Pixtral | Gemma4Vision | Llama4Vision

_OF_INPUTS = ("image_size", "patch_size", "merge", "tokens", "channels")
"""What the arrays of an image, and its tokens, depend on."""


def have_same_inputs(one: AnyVision | None, other: AnyVision | None) -> bool:
    """Return True if both are towers of one kind that read the same arrays of an image, and make as many tokens."""
    if one is None or type(one) is not type(other):
        return False
    return all(getattr(one, name, None) == getattr(other, name, None) for name in _OF_INPUTS)
