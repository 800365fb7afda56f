"""The weights that a job freezes (`training.freeze`), by layer.

A pattern is a word (`embeddings`, `head`, `norms`, `layers.0-3`, `layers.7`) or a glob over Hugging Face's names
(`model.layers.[0-3].*`, `*.mlp.*`). Layers are stacked, so a weight is frozen fully, or in some of its layers. Experts
of a layer are frozen together: their number in a name is written `*`. How a step leaves them unchanged: `freeze`.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from ptapi.spec import Training
from pttrainer.errors import ConfigError
from pttrainer.models import ModelConfig
from pttrainer.models.vision import names as vision_names
from pttrainer.models.weights.hf_names import Path, Stored, table

WORDS = {"embeddings": "model.embed_tokens*.weight", "head": "lm_head.weight", "norms": "*norm*.weight"}
LAYER_SCALARS = "model.layers.*.layer_scalar"
"""Which transformers stores, and does not train."""
INDEXER = "model.layers.*.indexer.*"
"""Which chooses what queries see; nothing learns from a choice."""
_LAYERS = re.compile(r"layers\.(\d+)(?:-(\d+))?")


def patterns_of(training: Training, config: ModelConfig) -> tuple[str, ...]:
    """Return what a job freezes: what it says, of the vision part, and numbers that no job trains.

    With adapters, nothing but they is trained.
    """
    if training.lora is not None:
        return ()
    of_images = () if config.vision is None else vision_names.frozen(config.vision, training.vision)
    indexed = config.latent is not None and config.latent.indexer is not None
    untrained = (*(LAYER_SCALARS,) * config.layer_scalars, *(INDEXER,) * indexed)
    return (*training.freeze, *of_images, *untrained)


def by_layer(patterns: Sequence[str], config: ModelConfig) -> dict[Path, tuple[bool, ...]]:
    """Return for each weight whether it is frozen, for each of its layers (one entry outside the layers).

    Raises ConfigError if a pattern matches nothing, or all weights are frozen.
    """
    names = {path: _names(stored) for path, stored in table(config).items()}
    every = [name for of_path in names.values() for name in of_path]
    globs: list[str] = []
    for pattern in patterns:
        own = _globs(pattern)
        if not any(_matches(name, own) for name in every):
            raise ConfigError(_no_match(pattern, config, [of_path[0] for of_path in names.values()]))
        globs += own
    if all(_matches(name, globs) for name in every):
        raise ConfigError(
            f"spec.training.freeze: {_shown(patterns)}: freezes every weight; accepted: patterns that leave some to "
            "train"
        )
    return {path: tuple(_matches(name, globs) for name in of_path) for path, of_path in names.items()}


def fully_frozen(patterns: Sequence[str], config: ModelConfig) -> frozenset[Path]:
    """Return the weights that are frozen in all of their layers."""
    return frozenset(path for path, frozen_mask in by_layer(patterns, config).items() if all(frozen_mask))


def _names(stored: Stored) -> list[str]:
    """Return one name per layer, or one for a weight outside the layers."""
    name = stored.name.replace("{e}", "*")
    return [name.replace("{i}", str(i)) for i in stored.layers] if "{i}" in name else [name]


def _globs(pattern: str) -> list[str]:
    layers = _LAYERS.fullmatch(pattern)
    if layers is None:
        return [WORDS.get(pattern, pattern)]
    first, last = int(layers[1]), int(layers[2] or layers[1])
    return [f"model.layers.{i}.*" for i in range(first, last + 1)]


def _matches(name: str, globs: list[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def _no_match(pattern: str, config: ModelConfig, names: list[str]) -> str:
    why = " (the head is the embedding here)" if pattern == "head" and config.tied_head else ""
    return (
        f"spec.training.freeze: {pattern}: matches no weight{why}; accepted: {', '.join(WORDS)}, layers.0-"
        f"{config.layers - 1}, or patterns of these names, of layer 0: {', '.join(names)}"
    )


def _shown(patterns: Sequence[str]) -> str:
    return f"[{', '.join(patterns)}]"
