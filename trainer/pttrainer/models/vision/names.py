"""Names of a vision tower's weights, and of its projector's, in Hugging Face's files: SigLIP's in Gemma 3."""

from pttrainer.models.config.vision import Vision
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


def names(of: Vision) -> dict[Path, Stored]:
    """Return where each weight is in a checkpoint."""
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
    return {(VISION, *path): one for path, one in stored.items()}
