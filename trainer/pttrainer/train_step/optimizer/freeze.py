"""Weights that a job freezes (`training.freeze`, `freeze_patterns`): how a step leaves them unchanged.

Frozen weights get no gradient, no weight decay and no share in the gradient norm; a fully frozen array has no optimizer
state either, and its gradient is not computed.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

from pttrainer.models import ModelConfig
from pttrainer.train_step.optimizer.freeze_patterns import by_layer

FrozenMask = bool | np.ndarray
"""The mask of one weight: one value for all of it, or one per layer."""


def frozen_mask(patterns: Sequence[str], config: ModelConfig) -> Any:
    """Return a tree of `FrozenMask`, shaped like the weights.

    Raises ConfigError if a pattern matches nothing, or all weights are frozen.
    """
    tree: dict[str, Any] = {}
    for path, of_path in by_layer(patterns, config).items():
        node = tree
        for key in path[:-1]:
            node = node.setdefault(key, {})
        is_frozen_L = np.array(of_path)
        node[path[-1]] = bool(is_frozen_L[0]) if is_frozen_L.all() or not is_frozen_L.any() else is_frozen_L
    return tree


def stop_gradients(params: Any, mask: Any) -> Any:
    """Return the weights, without a gradient where they are frozen."""

    def one(x: Array, is_frozen: FrozenMask) -> Array:
        if isinstance(is_frozen, bool):
            return lax.stop_gradient(x) if is_frozen else x
        return jnp.where(_by_layer(is_frozen, x), lax.stop_gradient(x), x)

    return params if mask is None else jax.tree.map(one, params, mask)


def trainable_count(params: Any, mask: Any) -> int:
    """Return how many numbers of these weights (shapes are enough) a step may change."""
    free = jax.tree.map(lambda x: False, params) if mask is None else mask
    sizes: Any = jax.tree.map(lambda x, is_frozen: round(x.size * (1.0 - float(np.mean(is_frozen)))), params, free)
    return int(sum(jax.tree.leaves(sizes)))


def wrap(rule: optax.GradientTransformationExtraArgs, mask: Any) -> optax.GradientTransformationExtraArgs:
    """Keep the rule from moving frozen weights, and from keeping state for fully frozen ones."""
    masked = optax.masked(rule, jax.tree.map(lambda is_frozen: is_frozen is not True, mask))

    def still(change: Array, is_frozen: FrozenMask) -> Array:
        if isinstance(is_frozen, bool):
            return jnp.full_like(change, -0.0) if is_frozen else change  # x + -0.0 is x to the bit, whatever its sign
        return jnp.where(_by_layer(is_frozen, change), -0.0, change)

    def update(gradient: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        change, state = masked.update(gradient, state, params, **extra)
        return jax.tree.map(still, change, mask), state

    return optax.GradientTransformationExtraArgs(masked.init, update)


def _by_layer(is_frozen: np.ndarray, like: Array) -> np.ndarray:
    return is_frozen.reshape(-1, *(1,) * (like.ndim - 1))
