"""What layers see: rotation and mask are computed once for all layers that see the same (a view).

Layers of one group may differ in it: local ones have a window, and sometimes a rotary embedding of their own.
"""

from jax import Array

from pttrainer.models.attention import rope
from pttrainer.models.attention.dot_product import Scoring
from pttrainer.models.config import ModelConfig, Rope

ViewKind = tuple[bool, Rope, int]
"""What layers share that see the same: whether they are local, their rotary embedding, and its size."""


def kinds(config: ModelConfig) -> list[bool]:
    """Return whether layers are local, each kind once, global ones first."""
    return sorted({config.is_local(layer) for layer in range(config.layers)})


def view_kind(config: ModelConfig, is_local: bool) -> ViewKind:
    """Return what local or global layers see."""
    local = config.local_rope if is_local else None
    return is_local, local or config.rope, config.rotary_dim


def view_of(config: ModelConfig, layer: int) -> ViewKind:
    """Return what a layer sees."""
    return view_kind(config, config.is_local(layer))


def views(config: ModelConfig) -> dict[ViewKind, ModelConfig]:
    """Return what the layers see, each kind once, and the config of layers that see it."""
    pairs = [(view_kind(group.config, kind), group.config) for group in config.groups for kind in kinds(group.config)]
    return dict(sorted(pairs, key=lambda pair: pair[0][0]))


def rotation(kind: ViewKind, positions: Array, sections: rope.Sections | None = None) -> rope.Rotation:
    """Return the rotation of tokens at positions [B, T] for these layers; [3, B, T] with sections (`rope.rotation`)."""
    _, of_kind, size = kind
    return rope.rotation(of_kind, size, positions, sections)


def scoring(config: ModelConfig, sinks_N: Array | None) -> Scoring:
    """Return how these layers' scores become weights."""
    return Scoring(config.scale, config.attention_softcap, sinks_N)
