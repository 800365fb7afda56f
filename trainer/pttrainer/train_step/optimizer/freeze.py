"""Weights that a job keeps as they are (`training.freeze`, `held`): how a step leaves them alone.

What is held gets no gradient, no weight decay and no share in the gradient norm; what is held whole has no optimizer
state either, and its gradient is not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

from pttrainer.models import ModelConfig
from pttrainer.train_step.optimizer.freeze_patterns import by_layer

Held = bool | np.ndarray
"""Of one weight: all of it (or nothing), or True per layer."""


def held(patterns: Sequence[str], config: ModelConfig) -> Any:
    """A tree of `Held`, shaped like the weights; raises ConfigError where a pattern matches nothing, or all do."""
    tree: dict[str, Any] = {}
    for path, of_path in by_layer(patterns, config).items():
        node = tree
        for key in path[:-1]:
            node = node.setdefault(key, {})
        found = np.array(of_path)
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
