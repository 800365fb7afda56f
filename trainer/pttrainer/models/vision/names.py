"""Names of a vision tower's weights, and of its projector's, in Hugging Face's files: SigLIP's in Gemma 3."""

from collections.abc import Callable
from typing import Any

from pttrainer.models.config.any_vision import AnyVision
from pttrainer.models.config.gemma4_vision import Gemma4Vision
from pttrainer.models.config.llama4_vision import Llama4Vision
from pttrainer.models.config.pixtral import Pixtral
from pttrainer.models.config.vision import QwenVision, Vision
from pttrainer.models.vision.gemma4 import weights as gemma4
from pttrainer.models.vision.llama4 import weights as llama4
from pttrainer.models.vision.pixtral import weights as pixtral
from pttrainer.models.vision.qwen import weights as qwen
from pttrainer.models.vision.qwen.weights import Located
from pttrainer.models.weights.weight_locations import Path, Stored

VISION = "vision"
"""Where they stand in the tree of weights."""
TOWER, PROJECTOR = "vision_tower.vision_model.", "multi_modal_projector."
"""Prefixes of names."""
LAYER = f"{TOWER}encoder.layers.{{i}}."
MATRICES = {
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.out_proj",
    "up": "mlp.fc1", "down": "mlp.fc2",
}  # fmt: skip
NORMS = {"attention_norm": "layer_norm1", "mlp_norm": "layer_norm2"}


LOCATED: dict[type, Callable[[Any, int], dict[Path, Located]]] = {
    QwenVision: qwen.weights,
    Pixtral: pixtral.weights,
    Gemma4Vision: gemma4.weights,
    Llama4Vision: llama4.weights,
}
"""Towers whose weights stand in one table with their shapes, from their config and the decoder's width."""


def names(of: AnyVision, d_model: int) -> dict[Path, Stored]:
    """Return where each weight is in a checkpoint. d_model: of the decoder."""
    located = LOCATED.get(type(of))
    own = _of_siglip(of) if located is None else {path: one.stored for path, one in located(of, d_model).items()}
    return {(VISION, *path): one for path, one in own.items()}


def prefix(of: AnyVision) -> str:
    """Return the prefix of the tower's names."""
    own = {QwenVision: qwen.TOWER, Pixtral: pixtral.TOWER, Gemma4Vision: gemma4.TOWER, Llama4Vision: llama4.TOWER}
    return own.get(type(of), TOWER)


def module_name(of: AnyVision, name: str) -> str:
    """Return what transformers calls a module of this name in files."""
    if isinstance(of, Vision):
        name = name.replace(TOWER, "vision_tower.", 1)
    return f"model.{name}" if isinstance(of, Vision | Pixtral) else name


def frozen(of: AnyVision, trained: str) -> tuple[str, ...]:
    """Return patterns of the names that are frozen where `training.vision` says what is trained."""
    if trained == "all":
        return gemma4.untrained(of) if isinstance(of, Gemma4Vision) else ()
    if isinstance(of, QwenVision):
        parts = ("patch_embed.*", "pos_embed.*", "blocks.*") if trained == "projector" else ("*",)
        return tuple(f"{qwen.TOWER}{part}" for part in parts)
    if isinstance(of, Llama4Vision) and trained == "projector":
        return tuple(f"{llama4.TOWER}{part}" for part in llama4.OUTSIDE_ADAPTER)
    projector = gemma4.PROJECTOR if isinstance(of, Gemma4Vision) else PROJECTOR
    return (f"{prefix(of)}*",) if trained == "projector" else (f"{prefix(of)}*", f"{projector}*")


def _of_siglip(of: AnyVision) -> dict[Path, Stored]:
    assert isinstance(of, Vision)
    stored: dict[Path, Stored] = {
        ("patches",): Stored(f"{TOWER}embeddings.patch_embedding.weight"),
        ("patches_bias",): Stored(f"{TOWER}embeddings.patch_embedding.bias"),
        ("positions",): Stored(f"{TOWER}embeddings.position_embedding.weight"),
        ("norm", "scale"): Stored(f"{TOWER}post_layernorm.weight"),
        ("norm", "bias"): Stored(f"{TOWER}post_layernorm.bias"),
        ("token_norm", "scale"): Stored(f"{PROJECTOR}mm_soft_emb_norm.weight"),
        ("projection",): Stored(f"{PROJECTOR}mm_input_projection_weight"),
    }
    layers = range(of.layers)
    for name, module in MATRICES.items():
        stored["layers", name] = Stored(f"{LAYER}{module}.weight", transposed=True, layers=layers)
        stored["layers", f"{name}_bias"] = Stored(f"{LAYER}{module}.bias", layers=layers)
    for norm, module in NORMS.items():
        stored["layers", norm, "scale"] = Stored(f"{LAYER}{module}.weight", layers=layers)
        stored["layers", norm, "bias"] = Stored(f"{LAYER}{module}.bias", layers=layers)
    return stored
