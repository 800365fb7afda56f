"""The weights of Gemma 4's tower: where each is in Hugging Face's files, its shape and its logical axes.

Letters: L layers, D width of the tower, F feed-forward, H elements of a head, N query heads, K key/value heads, X
numbers of a patch, S learned positions of a side, M width of the decoder.
"""

from pttrainer.models.config.gemma4_vision import Gemma4Vision
from pttrainer.models.vision.qwen.weights import Located
from pttrainer.models.weights.weight_locations import Path, Stored

TOWER, PROJECTOR = "model.vision_tower.", "model.embed_vision."
LAYER = f"{TOWER}encoder.layers.{{i}}."
MATRICES = {
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip
NORMS = {
    "attention_norm": "input_layernorm", "attention_post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm", "mlp_post_norm": "post_feedforward_layernorm",
}  # fmt: skip
HEAD_NORMS = {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}
BOUNDS = ("input_min", "input_max", "output_min", "output_max")
"""Between which a matrix's inputs and results are held, where the tower has them."""
STATISTICS = ("std_bias", "std_scale")
"""What is taken from a token, and what it is then multiplied by, where the tower has them."""


def weights(of: Gemma4Vision, d_model: int) -> dict[Path, Located]:
    """Return all weights. d_model: of the decoder."""
    D, X, S = of.d_model, of.channels * of.patch_size**2, of.positions
    patches = Stored(f"{TOWER}patch_embedder.input_proj.weight", transposed=True)
    projection = Stored(f"{PROJECTOR}embedding_projection.weight", transposed=True)
    named = {
        ("patches",): Located(patches, (X, D), (None, "embed")),
        ("positions",): Located(
            Stored(f"{TOWER}patch_embedder.position_embedding_table"), (2, S, D), (None, None, "embed")
        ),
        ("projection",): Located(projection, (D, d_model), (None, "embed")),
    }
    for name in STATISTICS * of.standardised:
        named[name,] = Located(Stored(f"{TOWER}{name}"), (D,), (None,))
    return named | {("layers", *path): one for path, one in _of_layers(of).items()}


def untrained(of: Gemma4Vision) -> tuple[str, ...]:
    """Return patterns of the names of numbers that transformers stores and does not train."""
    bounds = [f"{TOWER}encoder.*.{name}" for name in BOUNDS * of.clipped]
    return (*bounds, *(f"{TOWER}{name}" for name in STATISTICS * of.standardised))


def _of_layers(of: Gemma4Vision) -> dict[Path, Located]:
    L, D, F, queries, keys = of.layers, of.d_model, of.d_ff, of.heads * of.head_dim, of.kv_heads * of.head_dim
    into = ("layer", "embed", "heads")
    sides = {
        "q": ((L, D, queries), into),
        **dict.fromkeys("kv", ((L, D, keys), into)),
        "o": ((L, queries, D), ("layer", "heads", "embed")),
        **dict.fromkeys(("gate", "up"), ((L, D, F), ("layer", "embed", "mlp"))),
        "down": ((L, F, D), ("layer", "mlp", "embed")),
    }
    named: dict[Path, Located] = {}
    for name, module in MATRICES.items():
        stored = Stored(f"{LAYER}{module}.linear.weight", transposed=True, layers=range(L))
        named[name,] = Located(stored, *sides[name])
        for bound in BOUNDS * of.clipped:
            stored = Stored(f"{LAYER}{module}.{bound}", layers=range(L))
            named[f"{name}_{bound}",] = Located(stored, (L,), ("layer",))
    sizes = dict.fromkeys(NORMS, D) | dict.fromkeys(HEAD_NORMS, of.head_dim)
    for norm, module in {**NORMS, **HEAD_NORMS}.items():
        stored = Stored(f"{LAYER}{module}.weight", layers=range(L))
        named[norm, "scale"] = Located(stored, (L, sizes[norm]), ("layer", None))
    return named
