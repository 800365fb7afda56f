"""The weights of Llama 4's tower and projector: where each is in Hugging Face's files, its shape and its logical axes.

Letters: L layers, D width of the tower, F feed-forward, X numbers of a patch, N patches of a tile, Q patches of a
token, A width of the adapter, M width of the decoder.
"""

from pttrainer.models.config.llama4_vision import Llama4Vision
from pttrainer.models.vision.qwen.weights import Located
from pttrainer.models.weights.weight_locations import Path, Stored

TOWER, PROJECTOR = "vision_model.", "multi_modal_projector."
LAYER = f"{TOWER}model.layers.{{i}}."
OUTSIDE_ADAPTER = ("patch_embedding.*", "class_embedding", "positional_embedding_vlm", "layernorm_*", "model.*")
"""Patterns of what stands beside the adapter under the tower's prefix."""
MATRICES = {
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
    "up": "mlp.fc1", "down": "mlp.fc2",
}  # fmt: skip
LAYER_NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
NORMS = {"norm": "layernorm_pre", "last_norm": "layernorm_post"}
PROJECTIONS = ("merge", "inner", "projection")
"""Squares of patches to the adapter's width, within it, and to the decoder."""


def weights(of: Llama4Vision, d_model: int) -> dict[Path, Located]:
    """Return all weights. d_model: of the decoder."""
    D, X, N, Q, A = of.d_model, of.channels * of.patch_size**2, of.patches_per_side**2, of.merge**2, of.adapter
    named: dict[Path, Located] = {
        ("patches",): _matrix(f"{TOWER}patch_embedding.linear", (X, D), (None, "embed")),
        ("class_token",): Located(Stored(f"{TOWER}class_embedding"), (D,), (None,)),
        ("positions",): Located(Stored(f"{TOWER}positional_embedding_vlm"), (N + 1, D), (None, "embed")),
        ("merge",): _matrix(f"{TOWER}vision_adapter.mlp.fc1", (D * Q, A), ("embed", None)),
        ("inner",): _matrix(f"{TOWER}vision_adapter.mlp.fc2", (A, A), ("embed", None)),
        ("projection",): _matrix(f"{PROJECTOR}linear_1", (A, d_model), (None, "embed")),
    }
    for norm, module in NORMS.items():
        named[norm, "scale"] = Located(Stored(f"{TOWER}{module}.weight"), (D,), (None,))
        named[norm, "bias"] = Located(Stored(f"{TOWER}{module}.bias"), (D,), (None,))
    return named | {("layers", *path): one for path, one in _of_layers(of).items()}


def _matrix(module: str, shape: tuple[int, int], axes: tuple[str | None, str | None]) -> Located:
    return Located(Stored(f"{module}.weight", transposed=True), shape, axes)


def _of_layers(of: Llama4Vision) -> dict[Path, Located]:
    L, D, F = of.layers, of.d_model, of.d_ff
    into, out = ("layer", "embed", "heads"), ("layer", "heads", "embed")
    sides = {
        **dict.fromkeys("qkv", ((L, D, D), into)),
        "o": ((L, D, D), out),
        "up": ((L, D, F), ("layer", "embed", "mlp")),
        "down": ((L, F, D), ("layer", "mlp", "embed")),
    }
    named: dict[Path, Located] = {}
    for name, module in MATRICES.items():
        shape, axes = sides[name]
        named[name,] = Located(Stored(f"{LAYER}{module}.weight", transposed=True, layers=range(L)), shape, axes)
        own = axes[2] if axes[2] != "embed" else None
        named[f"{name}_bias",] = Located(
            Stored(f"{LAYER}{module}.bias", layers=range(L)), (L, shape[2]), (axes[0], own)
        )
    for norm, module in LAYER_NORMS.items():
        for part, suffix in (("scale", "weight"), ("bias", "bias")):
            stored = Stored(f"{LAYER}{module}.{suffix}", layers=range(L))
            named[norm, part] = Located(stored, (L, D), ("layer", None))
    return named
