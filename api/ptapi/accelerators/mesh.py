"""The device mesh of a job, as arithmetic: its axes, and what their `auto` comes to.

One rule, so that what is checked before chips are bought is what the trainer makes. Left out: whether the sizes fit the
devices, which each caller says in its own words.
"""

from __future__ import annotations

import math

from ptapi.spec import Parallelism

MESH_AXES = ("data", "fsdp", "tensor", "sequence", "expert")


def axis_sizes(parallelism: Parallelism, devices: int, slices: int) -> dict[str, int]:
    """Sizes of MESH_AXES with `auto` resolved. Their product is `devices` only where the sizes that were asked for fit.

    data: one copy of the model per slice (only gradients cross the slow network); fsdp: all that is left; others: 1.
    """
    asked = {axis: getattr(parallelism, axis) for axis in MESH_AXES}
    sizes = {"tensor": 1, "sequence": 1, "expert": 1} | {axis: size for axis, size in asked.items() if size != "auto"}
    left = devices // math.prod(sizes.values())
    if "data" not in sizes and "fsdp" not in sizes:
        sizes["data"] = slices if left % slices == 0 else 1
        left //= sizes["data"]
    return {axis: sizes.get(axis, left) for axis in MESH_AXES}
