"""The weights of a vision tower as plain data: shapes and logical axes.

They stand under `vision` in the tree of weights. Letters: L layers, D width of the tower, F feed-forward, C channels,
P pixels of a patch's side, N patches, M width of the decoder.
"""

from pttrainer.models.config import AnyVision, ModelConfig, Vision
from pttrainer.models.shapes.parameters import Axes, ParamSpec, Weights
from pttrainer.models.vision import names


def tower(config: ModelConfig) -> Weights:
    """Return the weights of a model's tower and projector; none if it has none."""
    of = config.vision
    if of is None:
        return {}
    located = names.LOCATED.get(type(of))
    if located is None:
        own = _of_siglip(of, config.d_model)
    else:
        own = {path: ParamSpec(one.shape, one.axes) for path, one in located(of, config.d_model).items()}
    return {(names.VISION, *path): one for path, one in own.items()}


def _of_siglip(of: AnyVision, d_model: int) -> Weights:
    assert isinstance(of, Vision)
    whole: Axes = (None,)
    D, C, P, N = of.d_model, of.channels, of.patch_size, of.patches_per_side**2
    outside: Weights = {
        ("patches",): ParamSpec((D, C, P, P), ("embed", None, None, None)),
        ("patches_bias",): ParamSpec((D,), whole),
        ("positions",): ParamSpec((N, D), (None, "embed")),
        ("norm", "scale"): ParamSpec((D,), whole),
        ("norm", "bias"): ParamSpec((D,), whole),
        ("token_norm", "scale"): ParamSpec((D,), whole),
        ("projection",): ParamSpec((D, d_model), (None, "embed")),
    }
    return outside | {("layers", *path): one for path, one in _of_layers(of).items()}


def _of_layers(of: Vision) -> Weights:
    L, D, F = of.layers, of.d_model, of.d_ff
    shapes: dict[str, tuple[tuple[int, int], Axes]] = {
        **dict.fromkeys(("q", "k", "v"), ((D, D), ("embed", "heads"))),
        "o": ((D, D), ("heads", "embed")),
        "up": ((D, F), ("embed", "mlp")),
        "down": ((F, D), ("mlp", "embed")),
    }
    params: Weights = {}
    for name, (shape, axes) in shapes.items():
        params[name,] = ParamSpec((L, *shape), ("layer", *axes))
        params[f"{name}_bias",] = ParamSpec((L, shape[1]), ("layer", axes[1] if axes[1] != "embed" else None))
    for norm in names.NORMS:
        params[norm, "scale"] = params[norm, "bias"] = ParamSpec((L, D), ("layer", None))
    return params
