"""Dropout on the inputs of adapters (LoRA, arXiv 2106.09685): training inputs alone, and no other product.

    (x·A)·B  becomes  (m ∘ x / (1 − rate) · A)·B      m one with probability 1 − rate, else zero, per element

As in PEFT: x·W keeps its x, and each matrix draws a mask of its own. Keys are folded from (seed, step, layer, matrix,
row of the batch), so micro-batches, devices and resumed runs draw the same masks; evaluation, scoring and rollout draw
none.
"""

import zlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pttrainer.batch import Batch
from pttrainer.models.layers.linear import Drop


class Dropout(NamedTuple):
    """The share of elements that are dropped, and the run's seed."""

    rate: float
    seed: int


def dropped(dropout: Dropout, step: Array, part: Batch) -> Callable[[Array], Drop]:
    """Return, for a numbered batch (`neftune.numbered`) or a part of it, each layer's dropout on adapter inputs."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(dropout.seed), step), 0x4C4F5241)
    kept = 1.0 - dropout.rate

    def of_layer(layer: Array) -> Drop:
        of_this = jax.random.fold_in(key, layer)

        def drop(matrix: str, x_BTX: Array) -> Array:
            own = jax.random.fold_in(of_this, zlib.crc32(matrix.encode()))

            def of_row(row: Array) -> Array:
                return jax.random.bernoulli(jax.random.fold_in(own, row), kept, x_BTX.shape[1:])

            mask_BTX = jax.vmap(of_row)(part.row_BT[:, 0])
            scale = jnp.asarray(1.0 / kept, x_BTX.dtype)
            return jnp.where(mask_BTX, x_BTX * scale, jnp.zeros((), x_BTX.dtype))

        return drop

    return of_layer
