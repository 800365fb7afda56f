"""The product of sorted rows with the matrix of each row's group, and on TPUs its gradients by kernels.

Letters: R rows sorted by group, X and Y the axes of a matrix, E groups.

XLA for TPUs has grouped kernels for the product and for the gradient of its rows. The gradient of the matrices it
computes as a product over all groups with the other groups' rows masked, E times the work, and matrices that are read
turned it copies (docs/findings/compilers.md). So these are megablox' `tgmm` and `gmm` there, which come with JAX
(`jax.experimental.pallas.ops.tpu.megablox`, after Gale et al. 2022, https://arxiv.org/abs/2211.15841). A sampler's
few rows have a kernel of their own (`few_rows`). Other platforms differentiate `jax.lax.ragged_dot` itself.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_derivatives import CustomVJPPrimal
from jax.sharding import PartitionSpec

from pttrainer.models.layers.mixture import few_rows
from pttrainer.models.layers.mixture.varying import alike, varying_as
from pttrainer.runtime.distributed import sharding
from pttrainer.runtime.tpu_tiles import LANES, SUBLANES_OF_16_BITS, filled_up

ROWS = 512
"""Rows of a tile. Each group ends with a tile that the next one's rows share, so larger ones waste more."""
AXIS_BYTES = 2048
"""The most bytes of a tile along X and Y: with 1,024 numbers of 16 bits, sums and copies fit a core's memory."""
CORES = {"TPU v4": 2, "TPU v5": 2}
"""Of a device, where they are several: they share a kernel's tiles along Y, and with one tile the second core idles."""
MOST_TILES = 2048
"""Of rows: `tgmm` counts tiles by a histogram of float32, right on a CPU for 6,144 bins and wrong for 8,192."""


def grouped_product(
    x_RX: Array, matrices_EXY: Array, sizes_E: Array, *, is_turned: bool = False, in_sampler: bool = False
) -> Array:
    """Return [R, Y]: the first `sizes_E[0]` rows times the first matrix, and so on; both are of one type of numbers.

    Rows behind all groups belong to no matrix: what is returned for them is undefined, and they add to no gradient.
    is_turned: memory has the matrices with Y before X, as a TPU keeps parts whose Y fills no lanes; training and
    sampling read them so. in_sampler: each layer's matrices are arrays of their own, and nothing is differentiated.
    """
    [product] = grouped_products(x_RX, (matrices_EXY,), sizes_E, is_turned=is_turned, in_sampler=in_sampler)
    return product


def grouped_products(
    x_RX: Array, matrices: tuple[Array, ...], sizes_E: Array, *, is_turned: bool = False, in_sampler: bool = False
) -> tuple[Array, ...]:
    """Return the products of the same rows with each of several matrices [E, X, Y], as `grouped_product` does."""
    if sharding.chip()[0] != "tpu" or not all(_kernel_can(x_RX, each.shape[2]) for each in matrices):
        return tuple(lax.ragged_dot(x_RX, each, sizes_E) for each in matrices)
    x_RX, sizes_E, *matrices_EXY = alike(x_RX, sizes_E, *matrices)
    if in_sampler:
        has_few_rows = few_rows.fits(x_RX, sharding.chip()[1])
        return tuple(_product(x_RX, each, sizes_E, is_turned, has_few_rows) for each in matrices_EXY)
    return _products(x_RX, tuple(matrices_EXY), sizes_E, is_turned)


def _kernel_can(x_RX: Array, Y: int) -> bool:
    R, X = x_RX.shape
    tiles = -(-R // tiles_for(R, X, Y, x_RX.dtype.itemsize)[0])
    return x_RX.dtype in (jnp.bfloat16, jnp.float32) and tiles <= MOST_TILES


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _products(x_RX: Array, matrices: tuple[Array, ...], sizes_E: Array, is_turned: bool) -> tuple[Array, ...]:
    return tuple(lax.ragged_dot(x_RX, each, sizes_E) for each in matrices)


_Kept = tuple[Array | None, tuple[Array, ...] | None, Array]


def _forward(
    x_RX: CustomVJPPrimal, matrices: tuple[CustomVJPPrimal, ...], sizes_E: CustomVJPPrimal, is_turned: bool
) -> tuple[tuple[Array, ...], _Kept]:
    """Return the products, and what either gradient needs if it will be asked for: of frozen matrices, no rows."""
    x, sizes, values = x_RX.value, sizes_E.value, tuple(each.value for each in matrices)
    is_learning = any(each.perturbed for each in matrices)
    kept = (x if is_learning else None), (values if x_RX.perturbed else None), sizes
    return tuple(_product(x, each, sizes, is_turned and is_learning) for each in values), kept


def _backward(
    is_turned: bool, kept: _Kept, outs: tuple[Array, ...]
) -> tuple[Array | None, tuple[Array, ...] | None, None]:
    x_RX, matrices, sizes_E = kept
    # Of frozen matrices all layers' would be there a second time, turned.
    reads_turned = x_RX is not None and not is_turned
    of_rows = None if matrices is None else _rows_gradient(outs, matrices, sizes_E, reads_turned)
    if x_RX is None:
        return of_rows, None, None
    of_matrices = (_by_device(partial(_matrices_gradient, is_turned), x_RX, each, sizes_E) for each in outs)
    return of_rows, tuple(varying_as(each, x_RX, *outs, sizes_E) for each in of_matrices), None


_products.defvjp(_forward, _backward, symbolic_zeros=True)


def _rows_gradient(outs: tuple[Array, ...], matrices: tuple[Array, ...], sizes_E: Array, reads_turned: bool) -> Array:
    turned_EYX = (each.swapaxes(1, 2) for each in matrices)
    first, *others = (_product(out, each, sizes_E, reads_turned) for out, each in zip(outs, turned_EYX, strict=True))
    total = first
    for part in others:
        # A bare sum of two arrays of 16 bits is twice as slow by the TPU compiler's estimate.
        total = total.astype(jnp.float32) + part.astype(jnp.float32)
    return total.astype(first.dtype)


def _product(x_RX: Array, matrices_EXY: Array, sizes_E: Array, is_turned: bool, has_few_rows: bool = False) -> Array:
    """Return the product. is_turned: memory has Y before X, in which order XLA's kernel would copy the matrices."""
    if min(matrices_EXY.shape[1:]) < LANES or not (is_turned or has_few_rows):
        return lax.ragged_dot(x_RX, matrices_EXY, sizes_E)
    kernel: Any = partial(turned_product, interpret=False)
    if has_few_rows:
        kernel = partial(few_rows.product, is_turned=is_turned, cores=_cores())
    stored = matrices_EXY.swapaxes(1, 2) if is_turned else matrices_EXY
    return varying_as(_by_device(kernel, x_RX, stored, sizes_E), x_RX, matrices_EXY, sizes_E)


def turned_product(x_RX: Array, matrices_EYX: Array, sizes_E: Array, *, interpret: bool) -> Array:
    """Return [R, Y], of the type of `x_RX`, as `grouped_product` does, of matrices that are read turned.

    interpret: run the kernel as ordinary operations, for tests without a TPU.
    """
    from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm

    R, X = x_RX.shape
    tiles = tiles_for(R, X, matrices_EYX.shape[1], x_RX.dtype.itemsize)
    x_RX = _filled(x_RX, tiles[0])
    product_RY: Array = gmm(
        x_RX,
        matrices_EYX,
        sizes_E,
        preferred_element_type=x_RX.dtype,
        tiling=tiles,
        transpose_rhs=True,
        interpret=interpret,
    )
    return product_RY[:R]


def _matrices_gradient(is_turned: bool, x_RX: Array, out_RY: Array, sizes_E: Array) -> Array:
    if is_turned:
        return matrices_gradient(out_RY, x_RX, sizes_E, interpret=False).swapaxes(1, 2)
    return matrices_gradient(x_RX, out_RY, sizes_E, interpret=False)


def matrices_gradient(x_RX: Array, out_RY: Array, sizes_E: Array, *, interpret: bool) -> Array:
    """Return [E, X, Y], of the type of `x_RX`: of each group, the sum over its rows of x times the product's gradient.

    Empty groups are zero. interpret: run the kernel as ordinary operations, for tests without a TPU.
    """
    # The package's attribute of this name is a function.
    from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm

    tiles = tiles_for(x_RX.shape[0], x_RX.shape[1], out_RY.shape[1], x_RX.dtype.itemsize)
    x_RX, out_RY = (_filled(each, tiles[0]) for each in (x_RX, out_RY))
    gradient_EXY: Array = tgmm(
        x_RX.T, out_RY, sizes_E, preferred_element_type=x_RX.dtype, tiling=tiles, interpret=interpret
    )
    return gradient_EXY


def _filled(x_RX: Array, of_rows: int) -> Array:
    """Return rows up to a multiple of a tile's."""
    return jnp.pad(x_RX, ((0, -len(x_RX) % of_rows), (0, 0)))


def tiles_for(rows: int, X: int, Y: int, itemsize: int) -> tuple[int, int, int]:
    """Return the kernels' tiles; rows are to be filled up to a multiple of the first."""
    fitting = [tile for tile in (ROWS, ROWS // 2, ROWS // 4) if rows % tile == 0]
    of_rows = fitting[0] if fitting else min(ROWS, filled_up(rows, SUBLANES_OF_16_BITS))
    most = AXIS_BYTES // itemsize
    return of_rows, _part(X, most), _part(Y, most, least=_cores())


def _cores() -> int:
    return CORES.get(sharding.chip()[1], 1)


def _part(size: int, most: int, least: int = 1) -> int:
    """Return the axis itself, or the least multiple of lanes that divides it into as few parts as tiles of `most`.

    least: of parts, where the axis fills lanes of as many.
    """
    parts = max(-(-size // most), min(least, -(-size // LANES)))
    return size if parts <= 1 else filled_up(-(-size // parts), LANES)


def _by_device(local: Any, *inputs: Array) -> Array:
    """Run the kernel on this device's part.

    Inside a `shard_map` that checks which arrays differ between devices, a kernel has to say so of its result. This one
    does not; a second `shard_map`, over no further axis, checks nothing.
    """
    if not jax.sharding.get_abstract_mesh().manual_axes:
        out: Array = local(*inputs)
        return out
    whole = PartitionSpec()
    unchecked: Any = jax.shard_map(
        local, in_specs=(whole,) * len(inputs), out_specs=whole, axis_names=set(), check_vma=False
    )
    part: Array = unchecked(*inputs)
    return part
