"""The architecture of a model: one frozen, hashable value that covers every family the decoder supports.

Left out: weights, number formats, layout over devices, and Hugging Face's spelling of all this in `config.json`
(`families`). An option that is off costs nothing: the decoder leaves it out of the compiled program.
"""

from pttrainer.models.config.any_vision import AnyVision
from pttrainer.models.config.attention import Chunk, Delta, GlobalHeads, Indexer, Latent, Window
from pttrainer.models.config.experts import Experts
from pttrainer.models.config.gemma4_vision import Gemma4Vision
from pttrainer.models.config.layer_embeddings import LayerEmbeddings
from pttrainer.models.config.layer_groups import LayerGroup, Scan
from pttrainer.models.config.llama4_vision import Llama4Vision
from pttrainer.models.config.model_config import ModelConfig
from pttrainer.models.config.pixtral import Pixtral
from pttrainer.models.config.rope import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ProportionalScaling,
    QueryScaling,
    Rope,
    Scaling,
    YarnScaling,
)
from pttrainer.models.config.vision import QwenVision, Vision

__all__ = [
    "AnyVision", "Chunk", "Delta", "Experts", "Gemma4Vision", "GlobalHeads", "Indexer", "Latent", "LayerEmbeddings",
    "LayerGroup", "LinearScaling", "Llama3Scaling", "Llama4Vision", "LongRopeScaling", "ModelConfig", "Pixtral",
    "ProportionalScaling", "QueryScaling", "QwenVision", "Rope", "Scaling", "Scan", "Vision", "Window", "YarnScaling",
]  # fmt: skip
