"""The vision tower that a model has."""

from collections.abc import Callable

from flax import nnx

from pttrainer.models.config import Gemma4Vision, Llama4Vision, ModelConfig, Pixtral, QwenVision, Vision
from pttrainer.models.lora.adapters import Adapters
from pttrainer.models.vision.gemma4.tower import Gemma4Tower
from pttrainer.models.vision.llama4.tower import Llama4Tower
from pttrainer.models.vision.pixtral.tower import PixtralTower
from pttrainer.models.vision.qwen.tower import QwenTower
from pttrainer.models.vision.tower import VisionTower

Tower = VisionTower | QwenTower | PixtralTower | Gemma4Tower | Llama4Tower
TOWERS: dict[type, Callable[[ModelConfig, nnx.Rngs, Adapters | None], Tower]] = {
    Vision: VisionTower,
    QwenVision: QwenTower,
    Pixtral: PixtralTower,
    Gemma4Vision: Gemma4Tower,
    Llama4Vision: Llama4Tower,
}


def build(config: ModelConfig, rngs: nnx.Rngs, adapters: Adapters | None) -> Tower | None:
    """Return the tower, with random weights; None for a model that takes no images."""
    return None if config.vision is None else TOWERS[type(config.vision)](config, rngs, adapters)
