"""The vision tower that a model has."""

from flax import nnx

from pttrainer.models.config import Gemma4Vision, ModelConfig, Pixtral, QwenVision
from pttrainer.models.vision.gemma4.tower import Gemma4Tower
from pttrainer.models.vision.pixtral.tower import PixtralTower
from pttrainer.models.vision.qwen.tower import QwenTower
from pttrainer.models.vision.tower import VisionTower


def build(config: ModelConfig, rngs: nnx.Rngs) -> VisionTower | QwenTower | PixtralTower | Gemma4Tower | None:
    """Return the tower, with random weights; None for a model that takes no images."""
    if config.vision is None:
        return None
    if isinstance(config.vision, Pixtral):
        return PixtralTower(config, rngs)
    if isinstance(config.vision, Gemma4Vision):
        return Gemma4Tower(config, rngs)
    return (QwenTower if isinstance(config.vision, QwenVision) else VisionTower)(config, rngs)
