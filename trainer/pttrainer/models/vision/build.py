"""The vision tower that a model has."""

from flax import nnx

from pttrainer.models.config import ModelConfig, Pixtral, QwenVision
from pttrainer.models.vision.pixtral.tower import PixtralTower
from pttrainer.models.vision.qwen.tower import QwenTower
from pttrainer.models.vision.tower import VisionTower


def build(config: ModelConfig, rngs: nnx.Rngs) -> VisionTower | QwenTower | PixtralTower | None:
    """Return the tower, with random weights; None for a model that takes no images."""
    if config.vision is None:
        return None
    if isinstance(config.vision, Pixtral):
        return PixtralTower(config, rngs)
    return (QwenTower if isinstance(config.vision, QwenVision) else VisionTower)(config, rngs)
