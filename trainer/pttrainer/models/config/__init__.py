"""The architecture of a model: one frozen, hashable value that covers every family the decoder supports.

Left out: weights, number formats, layout over devices, and Hugging Face's spelling of all this in `config.json`
(`families`). An option that is off costs nothing: the decoder leaves it out of the compiled program.
"""

from pttrainer.models.config.attention import Chunk, Delta, Latent, Window
from pttrainer.models.config.experts import Experts
from pttrainer.models.config.layer_groups import LayerGroup, Scan
from pttrainer.models.config.model_config import ModelConfig
from pttrainer.models.config.rope import LinearScaling, Llama3Scaling, QueryScaling, Rope, Scaling, YarnScaling
from pttrainer.models.config.vision import Vision

__all__ = [
    "Chunk", "Delta", "Experts", "Latent", "LayerGroup", "LinearScaling", "Llama3Scaling", "ModelConfig",
    "QueryScaling", "Rope", "Scaling", "Scan", "Vision", "Window", "YarnScaling",
]  # fmt: skip
