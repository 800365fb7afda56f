"""Which of a model's weights stand in strips while it samples, and whether they can."""

from __future__ import annotations

from typing import Any

import jax
from jax import Array

from pttrainer.models.cpu_kernels.blocked_matmul import HEAD, in_strips
from pttrainer.models.cpu_kernels.jit import host_tile
from pttrainer.models.cpu_kernels.register_tile import Tile
from pttrainer.models.quantization.packed_matrix import MATRICES


def tile_of(weights: Any) -> Tile | None:
    """The tile for weights (a tree of arrays) that lie on one CPU; None elsewhere, for a product in strips is not
    split, and for arrays that are on no device yet."""
    arrays = jax.tree.leaves(weights)
    if not all(isinstance(x, Array) for x in arrays):
        return None
    devices = {device for x in arrays for device in x.sharding.device_set}
    is_one_cpu = len(devices) == 1 and next(iter(devices)).platform == "cpu"
    return host_tile() if is_one_cpu else None


def layer_in_strips(layer: dict[str, Any], tile: Tile) -> dict[str, Any]:
    """A layer's weights with those of its matrices in strips that `layers.project` multiplies with."""

    def one(matrix: Any) -> Any:
        is_fit = isinstance(matrix, Array) and matrix.ndim == 2 and matrix.dtype == "float32"
        return in_strips(matrix, tile.width) if is_fit and matrix.shape[1] % tile.width == 0 else matrix

    changed = {
        part: {**layer[part], **{name: one(layer[part][name]) for name in names if name in layer[part]}}
        for part, names in MATRICES.items()
    }
    return {**layer, **changed}


def head_in_strips(head_VD: Array, tile: Tile) -> dict[str, Array]:
    """What is held beside the other weights for the product with the head, if anything."""
    return {HEAD: in_strips(head_VD.T, tile.width)} if head_VD.dtype == "float32" else {}
