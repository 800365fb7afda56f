"""Weights that a job keeps as they are (`training.freeze`): which they are, and how a step leaves them alone.

A pattern is a word (`embeddings`, `head`, `norms`, `layers.0-3`, `layers.7`) or a glob over Hugging Face's names
(`model.layers.[0-3].*`, `*.mlp.*`). Layers are stacked, so a weight is held (`Held`) whole, or in some of its layers.
Experts of a layer are held together: their number in a name is written `*`.

What is held gets no gradient, no weight decay and no share in the gradient norm; what is held whole has no optimizer
state either, and its gradient is not computed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

from pttrainer.errors import ConfigError
from pttrainer.models import ModelConfig
from pttrainer.models.names import table

Held = bool | np.ndarray
"""Of one weight: all of it (or nothing), or True per layer."""

WORDS = {"embeddings": "model.embed_tokens.weight", "head": "lm_head.weight", "norms": "*norm*.weight"}
_LAYERS = re.compile(r"layers\.(\d+)(?:-(\d+))?")


def held(patterns: Sequence[str], config: ModelConfig) -> Any:
    """A tree of `Held`, shaped like the weights; raises ConfigError where a pattern matches nothing, or all do."""
    names = {path: _names(stored.name, config.layers) for path, stored in table(config).items()}
    every = [name for of_path in names.values() for name in of_path]
    globs: list[str] = []
    for pattern in patterns:
        own = _globs(pattern)
        if not any(_matches(name, own) for name in every):
            raise ConfigError(_no_match(pattern, config, [of_path[0] for of_path in names.values()]))
        globs += own
    if all(_matches(name, globs) for name in every):
        raise ConfigError(f"spec.training.freeze: {_shown(patterns)}: freezes every weight; accepted: less than that")
    tree: dict[str, Any] = {}
    for path, of_path in names.items():
        node = tree
        for key in path[:-1]:
            node = node.setdefault(key, {})
        found = np.array([_matches(name, globs) for name in of_path])
        node[path[-1]] = bool(found[0]) if found.all() or not found.any() else found
    return tree


def stop(params: Any, of: Any) -> Any:
    """The weights, through which no gradient flows where they are held."""

    def one(x: Array, is_held: Held) -> Array:
        if isinstance(is_held, bool):
            return lax.stop_gradient(x) if is_held else x
        return jnp.where(_by_layer(is_held, x), lax.stop_gradient(x), x)

    return params if of is None else jax.tree.map(one, params, of)


def moving(params: Any, of: Any) -> int:
    """How many numbers of these weights (shapes are enough) a step may move."""
    free = jax.tree.map(lambda x: False, params) if of is None else of
    sizes: Any = jax.tree.map(lambda x, is_held: round(x.size * (1.0 - float(np.mean(is_held)))), params, free)
    return int(sum(jax.tree.leaves(sizes)))


def around(rule: optax.GradientTransformation, of: Any) -> optax.GradientTransformation:
    """The rule, which does not move what is held and keeps no state for what is held whole."""
    masked = optax.masked(rule, jax.tree.map(lambda is_held: is_held is not True, of))

    def still(change: Array, is_held: Held) -> Array:
        if isinstance(is_held, bool):
            return jnp.full_like(change, -0.0) if is_held else change  # x + -0.0 is x to the bit, whatever its sign
        return jnp.where(_by_layer(is_held, change), -0.0, change)

    def update(gradient: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        change, state = masked.update(gradient, state, params)
        return jax.tree.map(still, change, of), state

    return optax.GradientTransformation(masked.init, update)


def _by_layer(is_held: np.ndarray, like: Array) -> np.ndarray:
    return is_held.reshape(-1, *(1,) * (like.ndim - 1))


def _names(stored: str, layers: int) -> list[str]:
    """One name per layer; one, of a weight outside the layers."""
    name = stored.replace("{e}", "*")
    return [name.replace("{i}", str(i)) for i in range(layers)] if "{i}" in name else [name]


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
