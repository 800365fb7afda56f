"""Which of a model's weights are column-blocked while it samples, and whether they can be."""

from __future__ import annotations

from typing import Any

import jax
from jax import Array

from pttrainer.models.cpu_kernels.blocked_matmul import HEAD, to_column_blocks
from pttrainer.models.cpu_kernels.jit import host_tile
from pttrainer.models.cpu_kernels.register_tile import RegisterTile
from pttrainer.models.quantization.packed_matrix import MATRICES


def tile_of(weights: Any) -> RegisterTile | None:
    """Return the tile for weights (a tree of arrays) on one CPU, else None.

    A column-blocked product cannot be sharded, and abstract arrays are on no device yet.
    """
    arrays = jax.tree.leaves(weights)
    if not all(isinstance(x, Array) for x in arrays):
        return None
    devices = {device for x in arrays for device in x.sharding.device_set}
    is_one_cpu = len(devices) == 1 and next(iter(devices)).platform == "cpu"
    return host_tile() if is_one_cpu else None


def layer_in_column_blocks(layer: dict[str, Any], tile: RegisterTile) -> dict[str, Any]:
    """Return a layer's weights with the matrices that `layers.project` multiplies with in column blocks."""

    def one(matrix: Any) -> Any:
        is_fit = isinstance(matrix, Array) and matrix.ndim == 2 and matrix.dtype == "float32"
        return to_column_blocks(matrix, tile.width) if is_fit and matrix.shape[1] % tile.width == 0 else matrix

    changed = {
        part: {**layer[part], **{name: one(layer[part][name]) for name in names if name in layer[part]}}
        for part, names in MATRICES.items()
    }
    return {**layer, **changed}


def head_in_column_blocks(head_VD: Array, tile: RegisterTile) -> dict[str, Array]:
    """Return the additional weights for the product with the head, if any."""
    return {HEAD: to_column_blocks(head_VD.T, tile.width)} if head_VD.dtype == "float32" else {}
