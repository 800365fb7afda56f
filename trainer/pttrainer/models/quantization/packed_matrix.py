"""The parts of a quantised matrix as plain data (`quantize` defines and computes them).

Letters: I rows (inputs), O columns (outputs), N blocks of rows.
"""

from typing import Literal

from pttrainer.models.shapes.parameters import Axes, ParamSpec

Format = Literal["nf4", "int8"]
BLOCK = 64
"""Rows that share a scale."""
GROUP = 256
"""Scales that share a factor."""
VALUES = 16
"""Number of 4-bit values."""
MATRICES = {
    "attention": ("q", "k", "v", "o", "q_down", "q_up", "kv_down", "kv_up", "qkvz", "qkv", "z"),
    "mlp": ("gate", "up", "down", "shared_gate", "shared_up", "shared_down"),
    "layer_input": ("input_gate", "input_out"),
}
"""Quantised matrices of a layer."""
SLICED = ("kv_up",)
"""Those that decoding multiplies with head by head, and not as one product."""
PARTS: dict[Format, tuple[str, ...]] = {
    "nf4": ("codes", "scales", "factors", "mean", "values"),
    "int8": ("codes", "scales"),
}


def axes(kind: Format, of_matrix: Axes) -> dict[str, Axes]:
    """Return logical names of the parts' axes.

    Blocks of rows and groups of columns are split like rows and columns.
    """
    *stack, rows, columns = of_matrix
    if kind == "int8":
        return {"codes": of_matrix, "scales": (*stack, None, columns)}
    return {
        "codes": (*stack, rows, None, columns),
        "scales": (*stack, rows, columns, None),
        "factors": (*stack, rows, columns),
        "mean": tuple(stack),
        "values": (*stack, None),
    }


def parts(kind: Format, matrix: ParamSpec) -> dict[str, ParamSpec]:
    """Return the parts of a matrix [.., I, O]."""
    *stack, rows, columns = matrix.shape
    shapes: dict[str, tuple[tuple[int, ...], str]]
    if kind == "int8":
        shapes = {"codes": (matrix.shape, "int8"), "scales": ((*stack, 1, columns), "float32")}
    else:
        group = min(GROUP, columns)
        N, groups = -(-rows // BLOCK), -(-columns // group)
        shapes = {
            "codes": ((*stack, N, BLOCK // 2, columns), "uint8"),
            "scales": ((*stack, N, groups, group), "float8_e4m3fn"),
            "factors": ((*stack, N, groups), "float32"),
            "mean": (tuple(stack), "float32"),
            "values": ((*stack, VALUES), "float32"),
        }
    named = axes(kind, matrix.axes)
    return {name: ParamSpec(shape, named[name], dtype) for name, (shape, dtype) in shapes.items()}
