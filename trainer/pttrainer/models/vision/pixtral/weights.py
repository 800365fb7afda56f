"""The weights of Pixtral's tower and of Mistral 3's projector: where each is in files, its shape and its logical axes.

Letters: L layers, D width of the tower, F feed-forward, C channels, P pixels of a patch's side, Q patches of a token,
M width of the decoder.
"""

from pttrainer.models.config.pixtral import Pixtral
from pttrainer.models.vision.qwen.weights import Located
from pttrainer.models.weights.weight_locations import Path, Stored

TOWER, PROJECTOR = "vision_tower.", "multi_modal_projector."
LAYER = f"{TOWER}transformer.layers.{{i}}."
MATRICES = {
    "q": "attention.q_proj", "k": "attention.k_proj", "v": "attention.v_proj", "o": "attention.o_proj",
    "gate": "feed_forward.gate_proj", "up": "feed_forward.up_proj", "down": "feed_forward.down_proj",
}  # fmt: skip
NORMS = {"attention_norm": "attention_norm", "mlp_norm": "ffn_norm"}
PROJECTIONS = {"merge": "patch_merger.merging_layer", "inner": "linear_1", "outer": "linear_2"}
BIASED = ("inner", "outer")


def weights(of: Pixtral, d_model: int) -> dict[Path, Located]:
    """Return all weights. d_model: of the decoder."""
    D, C, P, Q, M = of.d_model, of.channels, of.patch_size, of.merge**2, d_model
    norm = ((D,), (None,))
    sides = {
        "merge": ((D * Q, D), ("embed", None)),
        "inner": ((D, M), (None, "embed")),
        "outer": ((M, M), (None, "embed")),
    }
    named = {
        ("patches",): Located(Stored(f"{TOWER}patch_conv.weight"), (D, C, P, P), ("embed", None, None, None)),
        ("norm", "scale"): Located(Stored(f"{TOWER}ln_pre.weight"), *norm),
        ("token_norm", "scale"): Located(Stored(f"{PROJECTOR}norm.weight"), *norm),
    }
    for name, module in PROJECTIONS.items():
        named[name,] = Located(Stored(f"{PROJECTOR}{module}.weight", transposed=True), *sides[name])
    for name in BIASED * of.projector_bias:
        named[f"{name}_bias",] = Located(Stored(f"{PROJECTOR}{PROJECTIONS[name]}.bias"), (M,), (None,))
    return named | {("layers", *path): one for path, one in _of_layers(of).items()}


def _of_layers(of: Pixtral) -> dict[Path, Located]:
    L, D, F = of.layers, of.d_model, of.d_ff
    into, out = ("layer", "embed", "heads"), ("layer", "heads", "embed")
    sides = {
        **dict.fromkeys(("q", "k", "v"), ((L, D, D), into)),
        "o": ((L, D, D), out),
        **dict.fromkeys(("gate", "up"), ((L, D, F), ("layer", "embed", "mlp"))),
        "down": ((L, F, D), ("layer", "mlp", "embed")),
    }
    named: dict[Path, Located] = {
        (name,): Located(Stored(f"{LAYER}{module}.weight", transposed=True, layers=range(L)), *sides[name])
        for name, module in MATRICES.items()
    }
    for norm, module in NORMS.items():
        named[norm, "scale"] = Located(Stored(f"{LAYER}{module}.weight", layers=range(L)), (L, D), ("layer", None))
    return named
