"""Frozen matrices in few bits, read as if they were whole: what QLoRA trains adapters on (arXiv 2305.14314).

    nf4    4 bits: w ≈ scale · c, c one of 16 quantiles of a normal distribution; a scale for every 64 rows of a column
    int8   8 bits: w ≈ scale · n, n in −127 … 127; a scale per column

The scales of nf4 are quantised again (double quantisation): less the mean of all of the matrix, they are 8-bit floats
with one factor for 256 of them, 4.13 bits per weight in all. A matrix [.., I, O] multiplies from the right, so a column
is what Hugging Face stores as a row, and a block of 64 is the one that bitsandbytes makes of the same matrix where 64
divides I. Where it does not, the last block is filled with zeros, which cost memory and change nothing.

Quantised are the linear layers of attention, MLP and experts; not embedding, head, norms, biases, router. In a tree of
weights such a matrix is a dictionary of its parts, whose axes keep the names of the matrix's axes: what a device holds
are whole blocks with their scales. In a module it is a `Quantized`, which reads like a Param: `matrix[...]` makes the
numbers where they are used, inside the layer that is scanned, so that one layer at most exists whole.

Letters: I rows (inputs), O columns (outputs), N blocks of 64 rows, G groups of at most 256 scales.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from types import EllipsisType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from pttrainer.models.quantization.packed_matrix import BLOCK, GROUP, MATRICES, PARTS, Format, axes
from pttrainer.models.weights.hf_names import is_of_layer

Parts = dict[str, Any]
"""A quantised matrix: arrays by name."""

NF4: tuple[float, ...] = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""NormalFloat of 4 bits (appendix E): quantiles of a normal distribution, scaled to ±1, with a zero."""

_FLOAT8 = jnp.float8_e4m3fn
_FLOAT8_MAX = 448.0


class Quantized(nnx.Module):
    """A matrix in parts; `matrix[...]` is the matrix, float32."""

    def __init__(self, matrix: nnx.Param[Array], kind: Format) -> None:
        self.kind, self.rows = kind, matrix[...].shape[-2]
        # jit: matrices of one shape, and layers have many, are traced once.
        parts, named = jax.jit(quantise, static_argnums=0)(kind, matrix[...]), axes(kind, matrix.get_metadata()["axes"])
        for name, part in parts.items():
            setattr(self, name, nnx.Param(part, axes=named[name]))

    def __getitem__(self, all_of_it: EllipsisType) -> Array:
        parts = {name: getattr(self, name)[...] for name in PARTS[self.kind]}
        return dequantise(self.kind, parts, self.rows)


def put_into(layer: nnx.Module, kind: Format) -> None:
    """Replace the matrices of a decoder layer."""
    for part, names in MATRICES.items():
        for name in names:
            module = getattr(layer, part, None)
            if hasattr(module, name):
                setattr(module, name, Quantized(getattr(module, name), kind))


def is_quantised(value: Any) -> bool:
    """Return True for a matrix in parts, in a tree of weights."""
    return isinstance(value, dict) and "codes" in value


def map_codes(tree: dict[str, Any], change: Callable[[Array], Array]) -> dict[str, Any]:
    """Return a tree of weights with the codes of its quantised matrices changed."""
    out: dict[str, Any] = {
        key: map_codes(value, change) if isinstance(value, dict) else value for key, value in tree.items()
    }
    return {**out, "codes": change(out["codes"])} if is_quantised(out) else out


def quantise_tree(params: dict[str, Any], kind: Format) -> tuple[dict[str, Any], dict[str, Squares]]:
    """Quantise a tree of weights; return it and the errors by name of matrix. Traceable."""
    out: dict[str, Any] = dict(params)
    squares: dict[str, Squares] = {}
    for group in filter(lambda key: is_of_layer((key,)), params):
        out[group] = dict(params[group])
        for part, names in ((part, names) for part, names in MATRICES.items() if part in params[group]):
            out[group][part] = dict(out[group][part])
            for name in filter(out[group][part].__contains__, names):
                out[group][part][name], changed = quantise_measured(kind, out[group][part][name])
                squares[name] = changed if name not in squares else jax.tree.map(jnp.add, squares[name], changed)
    return out, squares


def quantise(kind: Format, matrix: Array) -> Parts:
    """Return the parts of a matrix [.., I, O], or of a stack of them."""
    return _nf4(matrix.astype(jnp.float32)) if kind == "nf4" else _int8(matrix.astype(jnp.float32))


def dequantise(kind: Format, parts: Parts, rows: int) -> Array:
    """Return the matrix [.., I, O] of these parts, float32. rows: I."""
    if kind == "int8":
        whole: Array = parts["codes"].astype(jnp.float32) * parts["scales"]
        return whole
    columns = parts["codes"].shape[-1]
    # High halves, then low ones, as one more axis and not joined: so that all is one elementwise pass.
    shifts = jnp.array([4, 0], jnp.uint8)[:, None, None]
    values = _nf4_value(parts["codes"][..., None, :, :] >> shifts & 15, parts["values"])
    values = values * _scales(parts, columns)[..., None, None, :]
    return values.reshape(*values.shape[:-4], -1, columns)[..., :rows, :]


Squares = tuple[Array, Array]
"""Σ (ŵ − w)² and Σ w²."""


def quantise_measured(kind: Format, matrix: Array) -> tuple[Parts, Squares]:
    """Quantise like `quantise`, and return the squared error."""
    parts = quantise(kind, matrix)
    matrix = matrix.astype(jnp.float32)
    changed = dequantise(kind, parts, matrix.shape[-2]) - matrix
    return parts, (jnp.sum(changed * changed), jnp.sum(matrix * matrix))


@dataclass
class QuantizationErrors:
    """Quantisation errors by name of matrix; filled while weights are read."""

    squares: dict[str, list[Squares]] = field(default_factory=dict)

    def add(self, name: str, squares: Squares) -> None:
        """Add one more matrix of this name."""
        self.squares.setdefault(name, []).append(squares)

    def relative(self) -> dict[str, float]:
        """Return √(Σ (ŵ − w)² / Σ w²) over all layers, by name."""
        sums = {
            name: np.sum(np.array(jax.device_get(sums_of_name), np.float64), 0)
            for name, sums_of_name in self.squares.items()
        }
        return {name: float(np.sqrt(changed / max(whole, 1e-300))) for name, (changed, whole) in sums.items()}


@dataclass(frozen=True)
class Stack:
    """A weight of all layers that is made one layer at a time, on demand: the full stack never exists."""

    shape: tuple[int, ...]
    dtype: Any
    layer: Callable[[int], Array]

    def __getitem__(self, index: int) -> Array:
        return self.layer(index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return all layers, for callers with enough memory."""
        return np.stack([np.asarray(self.layer(index), dtype) for index in range(self.shape[0])])


def _int8(matrix: Array) -> Parts:
    scales = jnp.max(jnp.abs(matrix), axis=-2, keepdims=True) / 127.0
    return {"codes": jnp.round(matrix / _divisor(scales)).astype(jnp.int8), "scales": scales}


def _nf4(matrix: Array) -> Parts:
    *stack, rows, columns = matrix.shape
    padded = jnp.pad(matrix, [(0, 0)] * len(stack) + [(0, -rows % BLOCK), (0, 0)])
    blocks = padded.reshape(*stack, -1, BLOCK, columns)
    parts = _double(jnp.max(jnp.abs(blocks), axis=-2))
    # By the scales as they will be read: what the second quantisation lost is partly made good by the first.
    codes = _nf4_code(blocks / _divisor(_scales(parts, columns))[..., None, :])
    high, low = jnp.split(codes, 2, axis=-2)
    # With every matrix: as constants, XLA would spread them to its shape outside the loop over layers and keep them.
    values = jnp.broadcast_to(jnp.array(NF4, jnp.float32), (*stack, len(NF4)))
    return {"codes": high << 4 | low, **parts, "values": values}


def _double(scales: Array) -> Parts:
    """Quantise scales [.., N, O] to 8-bit floats in groups along O, after subtracting their mean."""
    *stack, _, columns = scales.shape
    mean = jnp.mean(scales, axis=(-2, -1))
    group = min(GROUP, columns)
    deviations = jnp.pad(scales - mean[..., None, None], [(0, 0)] * (len(stack) + 1) + [(0, -columns % group)])
    deviations = deviations.reshape(*deviations.shape[:-1], -1, group)
    factors = jnp.max(jnp.abs(deviations), axis=-1) / _FLOAT8_MAX
    return {"scales": (deviations / _divisor(factors)[..., None]).astype(_FLOAT8), "factors": factors, "mean": mean}


def _scales(parts: Parts, columns: int) -> Array:
    """Return scales [.., N, O], float32."""
    deviations = parts["scales"].astype(jnp.float32) * parts["factors"][..., None]
    deviations = deviations.reshape(*deviations.shape[:-2], -1)[..., :columns]
    scales: Array = deviations + parts["mean"][..., None, None]
    return scales


def _divisor(x: Array) -> Array:
    """Return a safe divisor: where all is zero, anything gives zero."""
    return jnp.where(x == 0, 1.0, x)


def _nf4_code(x: Array) -> Array:
    """Return the index of the nearest value: how many of the 15 midpoints lie below."""
    middles = [(low + high) / 2 for low, high in pairwise(NF4)]
    codes = jnp.zeros(x.shape, jnp.uint8)
    for middle in middles:
        codes = codes + (x > middle).astype(jnp.uint8)
    return codes


def _nf4_value(codes: Array, values: Array) -> Array:
    """Select values bit by bit: a table look-up per number is slow on a TPU.

    codes: four axes more than the stack of `values` has.
    """
    chosen: list[Array] = [values[..., code][..., None, None, None, None] for code in range(len(NF4))]
    for bit in range(4):
        is_set = (codes >> bit & 1).astype(bool)
        chosen = [jnp.where(is_set, high, low) for low, high in zip(chosen[::2], chosen[1::2], strict=True)]
    return chosen[0]
