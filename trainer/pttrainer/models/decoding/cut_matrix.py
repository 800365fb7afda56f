"""Matrices of a sampler in parts of their columns, which a TPU copies to its core one by one, ahead of their products.

A product of few rows loads the matrix unit for about as long as its matrix takes to come from memory. The compiler lets
both run at once where it copies the matrix to the core while another product runs. It copies whole arrays, and
a core has place for one large matrix, so every second product waited for memory first (figures:
docs/findings/compilers.md#sampling-on-tpus).

Letters: X inputs, Y outputs, P parts, S devices that split the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import EllipsisType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

CUT = ("gate", "up", "down")
"""Matrices of a feed-forward part that may be cut."""
FEW_TOKENS = 32
"""Of more tokens a row a product takes longer than its matrix takes to come, and multiplies with the whole matrix."""


class Cut(NamedTuple):
    """How a matrix is cut. devices: those that split its columns; each has its own in all parts."""

    parts: int
    devices: int


Cuts = Mapping[str, Cut]
"""How matrices of a layer's feed-forward part are cut, by name."""


@partial(jax.tree_util.register_dataclass, data_fields=["parts"], meta_fields=["devices"])
@dataclass(frozen=True)
class CutMatrix:
    """A matrix [X, Y] as P matrices [X, Y / P]; reads like a Param in a module. devices: as in `Cut`."""

    parts: tuple[Any, ...]
    devices: int

    ndim = 2

    def __getitem__(self, all_of_it: EllipsisType) -> CutMatrix:
        return self

    def astype(self, dtype: Any) -> CutMatrix:
        """Return the matrix in another number format."""
        return replace(self, parts=tuple(part.astype(dtype) for part in self.parts))

    def __rmatmul__(self, x: Array) -> Array:
        return self._columns([x @ part for part in self.parts])

    def whole(self, never: Array) -> Array:
        """Return the matrix in one piece. never: False, which depends on what a loop changes.

        Otherwise XLA joins the matrices of all layers before a loop, and keeps them.
        """
        return self._columns([jnp.where(never, jnp.zeros_like(part), part) for part in self.parts])

    def joined(self) -> Array:
        """Return the matrix in one piece, where no loop follows."""
        return self._columns(list(self.parts))

    def column(self, part: int, first: int) -> int:
        """Return which column of the matrix is the first of a device's in a part, of its place in the part."""
        width: int = self.parts[part].shape[1] // self.devices
        return len(self.parts) * first + part * width

    def _columns(self, columns: list[Array]) -> Array:
        of_device = [each.reshape(*each.shape[:-1], self.devices, -1) for each in columns]
        return jnp.concatenate(of_device, axis=-1).reshape(*columns[0].shape[:-1], -1)


def cut(w_XY: Array | np.ndarray, how: Cut) -> CutMatrix:
    """Return the parts of a matrix, on the host if it is there."""
    X, S = w_XY.shape[0], how.devices
    w_XSPY = w_XY.reshape(X, S, how.parts, -1)
    return CutMatrix(tuple(w_XSPY[:, :, i].reshape(X, -1) for i in range(how.parts)), S)


def same_for_parts(where: Any, how: Cut) -> CutMatrix:
    """Return what holds of a matrix, such as its sharding, for each of its parts."""
    return CutMatrix((where,) * how.parts, how.devices)


def cut_shape(of: jax.ShapeDtypeStruct, how: Cut) -> CutMatrix:
    """Return the shapes of a matrix's parts, with its sharding."""
    X, Y = of.shape
    part = jax.ShapeDtypeStruct((X, Y // how.parts), of.dtype, sharding=of.sharding)
    return same_for_parts(part, how)


def in_layer(layer: dict[str, Any], cuts: Cuts, of: Callable[[Any, Cut], CutMatrix]) -> dict[str, Any]:
    """Return a layer's tree of arrays, shapes or shardings with what `of` makes of those that are cut."""
    return {**layer, "mlp": {**layer["mlp"], **{name: of(layer["mlp"][name], how) for name, how in cuts.items()}}}


def cut_matrices(layer: Mapping[str, Any]) -> dict[str, CutMatrix]:
    """Return the matrices of a layer that are cut, by name."""
    return {name: matrix for name, matrix in layer["mlp"].items() if isinstance(matrix, CutMatrix)}
