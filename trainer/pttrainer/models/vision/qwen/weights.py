"""The weights of Qwen's tower: where each is in Hugging Face's files, its shape and its logical axes.

Letters: L layers, D width, F feed-forward, C channels, Z frames, P pixels of a patch's side, X numbers of a token's
square of patches, M width of the decoder.
"""

from typing import NamedTuple

from pttrainer.models.config import QwenVision
from pttrainer.models.weights.weight_locations import Part, Path, Stored

TOWER = "model.visual."
MERGERS = (f"{TOWER}merger.", f"{TOWER}deepstack_merger_list.")
"""What makes tokens of squares of patches."""
LAYER = f"{TOWER}blocks.{{i}}."


class Located(NamedTuple):
    """A weight's place in files, its shape and axes."""

    stored: Stored
    shape: tuple[int, ...]
    axes: tuple[str | None, ...]


def weights(of: QwenVision, d_model: int) -> dict[Path, Located]:
    """Return all weights. d_model: of the decoder."""
    D, C, Z, P = of.d_model, of.channels, of.frames, of.patch_size
    patches = Stored(f"{TOWER}patch_embed.proj.weight")
    outside = {
        ("patches",): Located(patches, (D, C, Z, P, P), ("embed", None, None, None, None)),
        ("patches_bias",): _vector(f"{TOWER}patch_embed.proj.bias", D),
        ("positions",): Located(Stored(f"{TOWER}pos_embed.weight"), (of.positions_per_side**2, D), (None, "embed")),
        **{("merger", *path): one for path, one in _merger(MERGERS[0], of, D, d_model).items()},
    }
    for number in range(len(of.deep_layers)):
        own = _merger(f"{MERGERS[1]}{number}.", of, D * of.merge**2, d_model)
        outside |= {(f"deep_{number}", *path): one for path, one in own.items()}
    return outside | {("layers", *path): one for path, one in _of_layers(of).items()}


def _of_layers(of: QwenVision) -> dict[Path, Located]:
    L, D, F = of.layers, of.d_model, of.d_ff
    layers = range(L)
    matrices = {
        "o": ("attn.proj", (D, D), ("heads", "embed")),
        "up": ("mlp.linear_fc1", (D, F), ("embed", "mlp")),
        "down": ("mlp.linear_fc2", (F, D), ("mlp", "embed")),
    }
    named: dict[Path, Located] = {}
    for place, name in enumerate("qkv"):
        matrix = Stored(f"{LAYER}attn.qkv.weight", True, layers, Part((place * D, 0), (3 * D, D)))
        bias = Stored(f"{LAYER}attn.qkv.bias", False, layers, Part((place * D,), (3 * D,)))
        named[name,] = Located(matrix, (L, D, D), ("layer", "embed", "heads"))
        named[f"{name}_bias",] = Located(bias, (L, D), ("layer", "heads"))
    for name, (module, shape, axes) in matrices.items():
        named[name,] = Located(Stored(f"{LAYER}{module}.weight", True, layers), (L, *shape), ("layer", *axes))
        bias = Stored(f"{LAYER}{module}.bias", layers=layers)
        named[f"{name}_bias",] = Located(bias, (L, shape[1]), ("layer", axes[1] if axes[1] != "embed" else None))
    for norm, module in (("attention_norm", "norm1"), ("mlp_norm", "norm2")):
        for part, ending in (("scale", "weight"), ("bias", "bias")):
            named[norm, part] = Located(Stored(f"{LAYER}{module}.{ending}", layers=layers), (L, D), ("layer", None))
    return named


def _merger(prefix: str, of: QwenVision, normed: int, d_model: int) -> dict[Path, Located]:
    """Return the weights of a merger, whose norm is of so many numbers."""
    X = of.d_model * of.merge**2
    return {
        ("norm", "scale"): _vector(f"{prefix}norm.weight", normed),
        ("norm", "bias"): _vector(f"{prefix}norm.bias", normed),
        ("up",): Located(Stored(f"{prefix}linear_fc1.weight", transposed=True), (X, X), ("embed", "mlp")),
        ("up_bias",): _vector(f"{prefix}linear_fc1.bias", X),
        ("down",): Located(Stored(f"{prefix}linear_fc2.weight", transposed=True), (X, d_model), ("mlp", "embed")),
        ("down_bias",): _vector(f"{prefix}linear_fc2.bias", d_model),
    }


def _vector(name: str, size: int) -> Located:
    return Located(Stored(name), (size,), (None,))
