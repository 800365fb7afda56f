"""The cycles of grouped products: sorted rows with the matrix of each row's group, and the gradient of the matrices.

Letters: R rows, X and Y the axes of a matrix, E groups.

They are kernels (libtpu's own for `ragged_dot`, megablox' `tgmm` and `gmm`), for which the compiler estimates nothing.
They take the time in which a large product has as many FLOPs. Left out: tiles of rows that two groups share, which are
computed for both, and waits for the matrices.
"""

import math
import re

NAMES = ("ragged-dot", "tgmm", "gmm")
"""The beginnings of their instructions' names."""
FLOPS_A_CYCLE = {"v5e": 2**17, "v5p": 2**18, "v6e": 2**19, "tpu7x": 2**19}
"""Of a device's matrix units."""
LARGE_PRODUCT = {"v5e": 0.88, "v5p": 0.90, "v6e": 0.70, "tpu7x": 0.80}
"""Of that rate: two matrices of 8,192 x 8,192, by the compiler's estimate (docs/findings/compilers.md)."""
_ARRAY = re.compile(r"\b(?:bf|f)\d+\[([\d,]+)\]")


def cycles(shape: str, rest: str, generation: str) -> float:
    """Return the cycles of a kernel by its result's shape and the rest of its instruction; 0 of what prepares it."""
    operands = rest.partition("operand_layout_constraints=")[2].partition("}}")[0]
    return flops(f"{shape} {operands}") / (LARGE_PRODUCT[generation] * FLOPS_A_CYCLE[generation])


def flops(arrays: str) -> float:
    """Return the FLOPs of a product of these arrays, its result among them: [R, X], [R, Y] and [E, X, Y]."""
    axes = [[int(size) for size in sizes.split(",")] for sizes in _ARRAY.findall(arrays)]
    rows, matrices = ([one for one in axes if len(one) == count] for count in (2, 3))
    if len(rows) != 2 or len(matrices) != 1:
        return 0.0
    # The product of all three sizes is the square of R · X · Y, wherever its axes stand.
    return 2.0 * math.isqrt(math.prod((*rows[0], *rows[1], *matrices[0][1:])))
