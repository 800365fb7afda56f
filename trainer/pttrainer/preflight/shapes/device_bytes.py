"""What a device holds of sharded arrays: shapes, number formats and bytes, without jax.

Shares have names, so that messages can name the largest. Divisions come from `logical_axes`, like those of real arrays.
"""

import math
from collections.abc import Iterable, Mapping
from itertools import permutations
from typing import NamedTuple

from pttrainer.models.shapes.parameters import ITEM_BYTES, ParamSpec
from pttrainer.models.weights.hf_names import Path
from pttrainer.runtime import tpu_tiles
from pttrainer.runtime.distributed import logical_axes

Sizes = Mapping[str, int]
"""Sizes of a mesh's axes."""


class Share(NamedTuple):
    """A device's part of an array."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Return its bytes in row-major layout."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def tiled_bytes(self) -> int:
        """Return its bytes in a TPU's layout."""
        return _in_tiles(self.shape) * ITEM_BYTES[self.dtype]


Shares = list[tuple[Path, Share]]


def sizes(shape: logical_axes.Shape) -> Sizes:
    """Return the axis sizes of a mesh of this shape."""
    return dict(zip(logical_axes.MESH_AXES, shape, strict=True))


def of_weights(weights: Iterable[tuple[Path, ParamSpec]], mesh: Sizes, platform: str) -> Shares:
    """Return shares of weights, and of arrays sharded like them."""
    return [(path, _of_weight(one, mesh, platform)) for path, one in weights]


def of_batch(arrays: Mapping[str, tuple[tuple[int, ...], str]], mesh: Sizes) -> Shares:
    """Return shares of a batch's arrays, [B, T, …] and number format by name."""
    return [((name,), Share(_divided(shape, _of_rows(shape, mesh)), dtype)) for name, (shape, dtype) in arrays.items()]


def total(shares: Shares, *, tiled: bool = False) -> int:
    """Return the total bytes."""
    return sum(share.tiled_bytes if tiled else share.bytes for _, share in shares)


def _of_weight(spec: ParamSpec, mesh: Sizes, platform: str) -> Share:
    assert spec.dtype is not None
    weight, gone = spec.mean_of or (spec, None)
    split = logical_axes.weight_split(mesh, weight.axes, weight.shape, platform)
    if gone is not None:
        del split[gone]
    pieces = [logical_axes.pieces(mesh, names) for names in split]
    return Share(_divided(spec.shape, pieces), spec.dtype)


def _of_rows(shape: tuple[int, ...], mesh: Sizes) -> list[int]:
    named = logical_axes.fitting_batch(mesh, shape)
    return [logical_axes.pieces(mesh, logical_axes.mesh_axes(name)) for name in named] + [1] * (len(shape) - len(named))


def _divided(shape: tuple[int, ...], pieces: list[int]) -> tuple[int, ...]:
    return tuple(size // count for size, count in zip(shape, pieces, strict=True))


def _in_tiles(shape: tuple[int, ...]) -> int:
    """Return elements including padding to tiles of 8 x 128. The two axes that waste least form the tiles."""
    layouts = permutations(range(len(shape)), 2)
    return min((tpu_tiles.in_tiles(shape, *tile) for tile in layouts), default=math.prod(shape))
